"""An engine without a model: each completion is a function of its request alone, in an order that a seed draws."""

import random
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from batchgen.records import Completion, Request

FINGERPRINT = {
    "weights_digest": "w" * 64,
    "tokenizer_digest": "t" * 64,
    "numerics": "portable/1",
    "kernel_set": "k" * 64,
}


@dataclass
class FakeEngine:
    """Holds up to `max_num_seqs` requests and finishes a random one of them at each step."""

    order: int = 0  # seed of the order in which requests end; changes no completion
    max_num_seqs: int = 8
    seconds: float = 0.0  # of each step
    slow: frozenset[str] = frozenset()  # row keys that end only when nothing else is left
    fingerprint: Mapping[str, str] = field(default_factory=lambda: dict(FINGERPRINT))
    about: Mapping[str, Any] = field(default_factory=lambda: {"threads": 1})
    asked: list[Request] = field(default_factory=list)
    most_held: int = 0
    calls: int = 0

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        """None among the requests: there is none now, and more may come."""
        self.calls += 1
        chance = random.Random(self.order)
        waiting, running, is_over = iter(requests), list[Request](), False
        while True:
            taken = list(islice(waiting, self.max_num_seqs - len(running)))
            is_over = is_over or len(taken) < self.max_num_seqs - len(running)
            new = [request for request in taken if request]
            self.asked += new
            running += new
            self.most_held = max(self.most_held, len(running))
            if not running and is_over:
                return
            if not running:
                continue
            time.sleep(self.seconds)
            ready = [request for request in running if request.row_key not in self.slow] or running
            request = chance.choice(ready)
            running.remove(request)
            yield complete(request)


def complete(request: Request) -> Completion:
    """Random tokens of the request's seed; "bad" in the row key makes an error, now and then a stop id or string."""
    params, name = request.params, (request.row_key, request.sample_index)
    draw = xxhash.xxh3_64_intdigest(repr((request.seed, request.prompt_token_ids)).encode())
    chance = np.random.Generator(np.random.PCG64(draw))
    if "bad" in request.row_key:
        return Completion(*name, (), "", "error", error_code="non_finite_logits", error_message="logits are not finite")
    size = int(chance.integers(1, params.max_tokens + 1))
    ids = tuple(int(token) for token in chance.integers(0, 1000, size))
    values = np.log(chance.random((size, (params.logprobs or 0) + 1), np.float32))
    top = values[:, 1:]
    return Completion(
        *name,
        ids,
        " ".join(map(str, ids)),
        "length" if size == params.max_tokens else "stop",
        stop_reason=[None, ids[-1], "é\n"][draw % 3] if size < params.max_tokens else None,
        logprobs=None if params.logprobs is None else tuple(values[:, 0].tolist()),
        top_logprobs_ids=tuple(tuple(range(len(row))) for row in top) if params.logprobs else None,
        top_logprobs_values=tuple(tuple(row.tolist()) for row in top) if params.logprobs else None,
        **_of_rollouts(request, ids, chance),
    )


def _of_rollouts(request: Request, ids: tuple[int, ...], chance: np.random.Generator) -> dict[str, Any]:
    """Kept tokens, those of the answer among them, and experts of two layers, if they are asked for."""
    found: dict[str, Any] = {}
    if request.params.kept_tokens:
        others = chance.integers(0, 1000, (len(ids), 3)).tolist()
        found["kept_tokens"] = tuple(tuple(sorted({i, *more})) for i, more in zip(ids, others, strict=True))
    if request.params.routed_experts:
        shape = len(request.prompt_token_ids) + len(ids) - 1, 2, 3
        found["routed_experts"] = chance.integers(0, 9, shape, np.uint8).tobytes()
        found |= {"routed_experts_shape": shape, "routed_experts_dtype": "uint8"}
    return found
