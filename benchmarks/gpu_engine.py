"""The whole engine on one GPU under native-sm90/1: throughput, where a step's time goes, and the device's limits.

    python -m benchmarks.gpu_engine [--model Qwen3-1.7B] [--balanced] [--no-price] [--out FILE.json]

Weights are random, prompts are random token ids, and every output has its full length. Text is not decoded. Limits are
measured in the same process: bytes a step (weights and cache) over the copy rate, operations over the rate of a large
matrix product. The price of invariance is the time beside the same engine whose every linear is the library's, which
picks a kernel by shape and may split K.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import torch

from batchgen import kernels
from batchgen.engine.admission import ModelLimits
from batchgen.engine.ahead_runner import AheadRunner
from batchgen.engine.batch import Chunk, Plan, Sampled
from batchgen.engine.engine import Engine
from batchgen.engine.native_proof import prove
from batchgen.engine.scheduler import Limits
from batchgen.kernels.device import TENSOR_CORES, choose, describe
from batchgen.kernels.triton.tuning import LIBRARY, OPS, Rule, table_of
from batchgen.models.config import ModelConfig, MoeConfig
from batchgen.models.device_weights import DeviceWeights
from batchgen.models.native_decoder import NativeDecoder
from batchgen.records import Request, SamplingParams
from batchgen.routing import Routing
from benchmarks.balanced import balanced
from benchmarks.gpu_timing import copy_limit, matrix_limit

MAX_MODEL_LEN, SEQUENCES, BUDGET = 8448, 256, 16_384
# What vLLM 0.26 does by default on an H200, measured another day.
BASELINE = {
    "Qwen3-1.7B": {
        "prefill tok/s": 185_700.0, "decode tok/s": 22_280.0, "job tok/s": 15_090.0, "1 ms": 1.89, "32 ms": 2.99
    },
    "Qwen3-30B-A3B": {"prefill tok/s": 73_900.0, "decode tok/s": 9_510.0, "job tok/s": 6_290.0},
}  # fmt: skip


def qwen3(
    layers: int, hidden: int, heads: int, inner: int, *, tied: bool, kv_heads: int = 8, moe: MoeConfig | None = None
) -> ModelConfig:
    """A Qwen3 of that size."""
    return ModelConfig(
        architecture="Qwen3MoeForCausalLM" if moe else "Qwen3ForCausalLM",
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        max_position_embeddings=40_960,
        max_context=40_960,
        tie_word_embeddings=tied,
        qkv_bias=False,
        qk_norm=True,
        bos_token_id=None,
        eos_token_ids=(),
        moe=moe,
    )


MODELS = {
    "Qwen3-1.7B": qwen3(28, 2048, 16, 6144, tied=True),
    "Qwen3-8B": qwen3(36, 4096, 32, 12_288, tied=False),
    "Qwen3-30B-A3B": qwen3(
        48, 2048, 32, 6144, tied=False, kv_heads=4,
        moe=MoeConfig(128, 768, Routing(8, "softmax", True, 1.0), False, 0, ()),
    ),
}  # fmt: skip


class Silent:
    """Decodes nothing."""

    def decoder(self, *, skip_special_tokens: bool) -> "Silent":
        return self

    def matcher(self, outputs: object, vocab_size: int) -> NoReturn:
        raise NotImplementedError("no request here has a grammar")

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


@dataclass
class Timed:
    """A runner around a runner that keeps the seconds of its steps."""

    runner: AheadRunner
    steps: list[tuple[int, int, float]] = field(default_factory=list)  # sequences, tokens, seconds

    def step(self, chunks: Sequence[Chunk], *, plan: Plan | None = None) -> list[Sampled]:
        start = perf_counter()
        drawn = self.runner.step(chunks, plan=plan)
        self.steps.append((len(chunks), sum(chunk.length for chunk in chunks), perf_counter() - start))
        return drawn


def requests(count: int, prompt: int, output: int) -> list[Request]:
    """Random prompts, drawn at temperature 1, that end at their length."""
    ids = np.random.default_rng(1).integers(0, 151_000, (count, prompt))
    params = SamplingParams(temperature=1.0, max_tokens=output, ignore_eos=True)
    return [Request(str(i), 0, i, tuple(row), params, ()) for i, row in enumerate(ids.tolist())]


@contextmanager
def stopwatch(into: dict[str, Any], name: str) -> Iterator[None]:
    """Seconds, with the device's work done."""
    start = perf_counter()
    yield
    torch.cuda.synchronize()
    into[name] = perf_counter() - start


@contextmanager
def library_picks(device: torch.device) -> Iterator[None]:
    """Every linear is the library's, by a kernel of its choice: fast, and not invariant."""
    table, settings = table_of(device), torch.backends.cuda.matmul
    honest = table._rules, table._other
    table._rules, table._other = {}, {op: [Rule(None, LIBRARY)] for op in OPS}
    torch.backends.cuda.preferred_blas_library("cublas")
    settings.allow_bf16_reduced_precision_reduction = True
    yield
    table._rules, table._other = honest
    torch.backends.cuda.preferred_blas_library("cublaslt")
    settings.allow_bf16_reduced_precision_reduction = (False, False)


class Bench:
    """One engine and what is measured on it."""

    def __init__(self, name: str, device: torch.device) -> None:
        """Starts it as executor/start.py does, but for weights, which are drawn."""
        self.config = MODELS[name]
        self.starting: dict[str, Any] = {}
        with stopwatch(self.starting, "weights s"):
            weights = DeviceWeights.seeded(self.config, device)
        self.decoder = NativeDecoder(self.config, weights.tensors, MAX_MODEL_LEN, device)
        with stopwatch(self.starting, "proof s"):
            self.proof = prove(self.decoder, BUDGET, SEQUENCES)
        self.num_blocks = SEQUENCES * 40
        self.cache = self.decoder.new_cache(self.num_blocks)
        self.new_runner()
        with stopwatch(self.starting, "first token s"):
            self.run(1, 16, 1)

    def new_runner(self) -> None:
        """One that has captured nothing yet."""
        self.runner = AheadRunner(self.decoder, self.cache, MAX_MODEL_LEN, processed_logprobs=False)

    def run(self, count: int, prompt: int, output: int) -> tuple[float, list[tuple[int, int, float]]]:
        """Seconds of the job, and its steps."""
        limits = Limits(count, BUDGET, self.num_blocks, 0, looks_ahead=True)
        timed = Timed(self.runner)
        model = ModelLimits(self.config.vocab_size, MAX_MODEL_LEN, frozenset())
        engine = Engine(timed, Silent(), model, limits, {})
        wanted = requests(count, prompt, output)
        start = perf_counter()
        done = list(engine.generate(wanted))
        seconds = perf_counter() - start
        assert len(done) == count
        assert all(completion.finish_reason == "length" for completion in done)
        return seconds, timed.steps

    @torch.inference_mode()
    def graph_ms(self, count: int) -> float:
        """Milliseconds of the device alone: replays of the graph of the last decode of so many sequences."""
        graph = next(graph for (S, _), graph in self.runner.graphs._graphs.items() if count == S)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        for _ in range(10):
            graph.replay(count)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 10

    def decode(self, count: int, output: int, limit: float) -> dict[str, float]:
        """Of sequences with prompts of 1024 tokens, the steps of decodes alone, but for the first ones."""
        self.run(count, 1024, output if count > 32 else 3)  # compiles and captures
        seconds, steps = self.run(count, 1024, output)
        decodes = [took for sequences, tokens, took in steps if sequences == tokens == count][2:]
        prefills = [(tokens, took) for sequences, tokens, took in steps if tokens > sequences]
        between = seconds - sum(took for *_, took in steps)
        step, context = float(np.median(decodes)), 1024 + output / 2
        per_position = 4 * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim
        least = (self.weight_bytes(count) + count * context * per_position) / limit / 1e6
        host = between / len(steps)
        return {
            "step ms": (step + host) * 1e3,
            "graph ms": self.graph_ms(count),
            "runner ms": step * 1e3,
            "scheduler ms": host * 1e3,
            "limit ms": least * 1e3,
            "decode tok/s": count / (step + host),
            "of the limit": least / (step + host),
            "prefill tok/s": sum(tokens for tokens, _ in prefills) / sum(took for _, took in prefills),
            "job tok/s": count * output / seconds,
        }

    def measure(self, output: int, copy: float, product: float) -> dict[str, Any]:
        """Decode and prefill; the limits are in bytes and operations a microsecond."""
        report: dict[str, Any] = {}
        for count, tokens in ((1, min(128, output)), (32, min(128, output)), (256, output)):
            report[f"decode {count}"] = found = self.decode(count, tokens, copy)
            print(count, {name: round(value, 3) for name, value in found.items()}, flush=True)
        for name, count, prompt in (("prefill", 256, 1024), ("prefill 16 x 8192", 16, 8192)):
            self.run(count, prompt, 1)
            seconds, steps = self.run(count, prompt, 1)
            report[name] = {
                "tok/s": count * prompt / seconds,
                "of the limit": count * prompt * self.operations(prompt) / product / 1e6 / seconds,
                "steps": Counter(tokens for _, tokens, _ in steps).most_common(3),
                "outside the runner ms": (seconds - sum(took for *_, took in steps)) / len(steps) * 1e3,
            }
            print(name, report[name], flush=True)
        return report

    def operations(self, prompt: int) -> float:
        """Of a prompt's token in a prefill, with half of the prompt's keys on average."""
        config = self.config
        weights = layer_weights(config, config.moe.routing.top_k if config.moe else 0)
        return 2 * config.num_layers * (weights + prompt * config.num_heads * config.head_dim)

    def weight_bytes(self, count: int) -> float:
        """What a decode of so many sequences reads: of the experts those that some token goes to."""
        config = self.config
        layers = config.num_layers * layer_weights(config, self.experts_touched(count))
        return 2 * (layers + config.vocab_size * config.hidden_size)

    def experts_touched(self, count: int) -> float:
        """By a decode of so many sequences, on average over layers."""
        seen: list[int] = []

        def see(op: str, outputs: kernels.Outputs) -> None:
            if op == "route" and len(outputs["experts"]) == count:
                seen.append(len(torch.bincount(torch.as_tensor(outputs["experts"]).view(-1)).nonzero()))

        if self.config.moe:
            with kernels.watch(see):
                self.run(count, 64, 3)
        return float(np.mean(seen)) if seen else 0.0


def layer_weights(config: ModelConfig, experts: float) -> float:
    """Weights of the linears of one layer, with so many of its experts."""
    if config.moe is None:
        return config.layer_weights
    every = config.moe.num_experts
    return (
        config.layer_weights
        + config.hidden_size * every
        - 3 * config.hidden_size * config.moe.inner_size * (every - experts)
    )


def price_of_invariance(bench: Bench, device: torch.device, report: dict[str, Any]) -> dict[str, float]:
    """Of time, beside the same engine with the library's linears, whose report goes into this one."""
    with library_picks(device):
        bench.new_runner()
        report["library picks"] = free = bench.measure(report["output"], report["copy"], report["product"])
    price = {name: report[name]["step ms"] / free[name]["step ms"] - 1 for name in free if name.startswith("decode")}
    price["prefill"] = free["prefill"]["tok/s"] / report["prefill"]["tok/s"] - 1
    print("price of invariance", {name: f"{share:+.1%}" for name, share in price.items()})
    return price


def over(baseline: dict[str, float], report: dict[str, Any]) -> dict[str, float]:
    """How many times as fast."""
    found = report["decode 256"]
    ratios = {name: found[name] / baseline[name] for name in ("decode tok/s", "job tok/s")}
    ratios |= {"prefill tok/s": report["prefill"]["tok/s"] / baseline["prefill tok/s"]}
    ratios |= {
        f"{n} ms": baseline[f"{n} ms"] / report[f"decode {n}"]["step ms"] for n in (1, 32) if f"{n} ms" in baseline
    }
    print("over vLLM's default", {name: round(ratio, 3) for name, ratio in ratios.items()})
    return ratios


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="Qwen3-1.7B")
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--balanced", action="store_true", help="every expert gets as many tokens: not what it means")
    parser.add_argument("--no-price", action="store_true", help="do not measure beside the library's linears")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = choose("cuda", TENSOR_CORES)
    bench = Bench(args.model, device)
    copy, product = copy_limit(), matrix_limit()
    report: dict[str, Any] = {"gpu": describe(device), "model": args.model, "copy": copy, "product": product}
    report |= {"output": args.output, "start": bench.starting, "proof": bench.proof.to_json()}
    print(json.dumps(report), flush=True)
    with balanced() if args.balanced else nullcontext():
        bench.new_runner()
        report |= bench.measure(args.output, copy, product)
    if not args.no_price:
        report["price of invariance"] = price_of_invariance(bench, device, report)
    if (baseline := BASELINE.get(args.model)) and args.output == 256:
        report["over vLLM's default"] = over(baseline, report)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
