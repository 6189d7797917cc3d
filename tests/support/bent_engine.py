"""A fake engine whose completions of chosen rows are bent: what a fault would do to them."""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from support.fake_engine import FakeEngine

from batchgen.records import Completion, Request

Bend = Literal["token", "shorter", "logprob", "top", "error", "other_error", "wide", "text", "none"]


@dataclass
class BentEngine(FakeEngine):
    """`bends`: row key -> what is done to all samples of that row."""

    bends: Mapping[str, Bend] = field(default_factory=dict)

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        return (
            bend(completion, self.bends.get(completion.row_key, "none")) for completion in super().generate(requests)
        )


def bend(done: Completion, how: Bend) -> Completion:
    """Another token in the middle, the last token gone, one bit of a logprob, an error, another text."""
    if how in ("error", "other_error", "wide"):
        code = "kept_tokens" if how == "wide" else "non_finite_logits"
        return Completion(done.row_key, done.sample_index, (), "", "error", error_code=code, error_message=how)
    if done.finish_reason == "error" or how == "none":
        return done
    middle, size = len(done.token_ids) // 2, len(done.token_ids)
    if how == "token":
        ids = (*done.token_ids[:middle], done.token_ids[middle] + 1, *done.token_ids[middle + 1 :])
        return replace(done, token_ids=ids)
    if how == "shorter":
        names = ("token_ids", "logprobs", "top_logprobs_ids", "top_logprobs_values")
        values = {name: getattr(done, name) for name in names}
        return replace(done, **{name: value[: size - 1] for name, value in values.items() if value is not None})
    if how == "logprob" and done.logprobs is not None:
        odd = next_float(done.logprobs[middle])
        return replace(done, logprobs=(*done.logprobs[:middle], odd, *done.logprobs[middle + 1 :]))
    if how == "top" and done.top_logprobs_values:
        values_ = [list(row) for row in done.top_logprobs_values]
        values_[middle][-1] = next_float(values_[middle][-1])
        return replace(done, top_logprobs_values=tuple(map(tuple, values_)))
    return replace(done, text=done.text + "!") if how == "text" else done


def next_float(value: float) -> float:
    """The float32 whose bits are one more."""
    return float((np.array([value], np.float32).view(np.int32) + 1).view(np.float32)[0])
