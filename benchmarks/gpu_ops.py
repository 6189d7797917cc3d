"""Each tensor-core op of a decoder at decode and prefill shapes, and whole steps made of them, on one GPU.

    python -m benchmarks.gpu_ops [--model Qwen3-1.7B] [--out FILE.json]

Weights are random. A time is a replay of a CUDA graph that runs the op once for every layer, each with its own
weights, divided by the layers. The limit of an op is the larger of its bytes over the device's copy rate and its
operations over the rate of a large matrix product, both measured here.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from batchgen.kernels import triton as ops
from batchgen.kernels.routing import Pairs, Routing
from batchgen.kernels.triton import launch
from benchmarks.gpu_timing import copy_limit, matrix_limit, replay_us

CONTEXT = 1152  # the mean of 256 x (1024 -> 256)
PROMPT = 1024
DECODES = (1, 8, 32, 128, 256)
PREFILLS = (8, 16)  # sequences of PROMPT tokens

# What vLLM 0.26 does by default on an H200, microseconds a step, from a run beside these shapes.
BASELINE = {("Qwen3-1.7B", 1): 1890.0, ("Qwen3-1.7B", 32): 2990.0, ("Qwen3-1.7B", 256): 256 / 22280 * 1e6}
BASELINE |= {("Qwen3-1.7B", count * PROMPT): count * PROMPT / 185700 * 1e6 for count in PREFILLS}
BASELINE |= {("Qwen3-30B-A3B", count * PROMPT): count * PROMPT / 73900 * 1e6 for count in PREFILLS}
BASELINE[("Qwen3-30B-A3B", 256)] = 256 / 9510 * 1e6


class Model(NamedTuple):
    """The shape of a decoder."""

    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    inner: int  # of one expert, where there are experts
    vocab: int
    experts: int = 0
    top_k: int = 0


MODELS = {
    "Qwen3-1.7B": Model(28, 2048, 16, 8, 128, 6144, 151936),
    "Qwen3-8B": Model(36, 4096, 32, 8, 128, 12288, 151936),
    "Qwen3-30B-A3B": Model(48, 2048, 32, 4, 128, 768, 151936, 128, 8),
}


class Op(NamedTuple):
    """One op of every layer, or (once) of a step."""

    name: str
    run: Callable[[int], object]  # of a layer
    bytes: float
    flops: float
    once: bool = False


def bf16(*shape: int) -> torch.Tensor:
    """Random values of a weight's size."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02


class Decoder:
    """Random weights, and the ops of a step over them."""

    def __init__(self, model: Model) -> None:
        """Allocates the weights on the current device."""
        self.model = m = model
        width = (m.q_heads + 2 * m.kv_heads) * m.head_dim
        self.qkv = [bf16(width, m.hidden) for _ in range(m.layers)]
        self.o = [bf16(m.hidden, m.q_heads * m.head_dim) for _ in range(m.layers)]
        stack = (m.experts,) if m.experts else ()
        self.gate_up = [bf16(*stack, 2 * m.inner, m.hidden) for _ in range(m.layers)]
        self.down = [bf16(*stack, m.hidden, m.inner) for _ in range(m.layers)]
        spread = torch.randn(m.experts, 1, device="cuda", dtype=torch.bfloat16).mul_(0.15).exp_()
        self.router = [bf16(m.experts, m.hidden) * spread for _ in range(m.layers if m.experts else 0)]
        self.head = bf16(m.vocab, m.hidden)
        self.norm = torch.ones(m.hidden, device="cuda")
        self.head_norm = torch.ones(m.head_dim, device="cuda")
        self.rotary = tuple(torch.randn(4096, m.head_dim // 2, device="cuda") for _ in range(2))

    def ops(self, sequences: int, query: int, context: int) -> "Step":
        """A step of equal sequences, each with `query` new tokens that end at `context`."""
        return Step(self, sequences, query, context)


class Step:
    """Buffers of one step's size."""

    def __init__(self, decoder: Decoder, S: int, query: int, context: int) -> None:
        """S sequences. A cache a layer where they are small, so that none is read from the L2 cache."""
        self.d, self.S, self.T, self.query, self.context = decoder, S, S * query, query, context
        m = decoder.model
        blocks = -(-context // 32)
        shape = (S * blocks, m.kv_heads, 32, m.head_dim)
        self.caches = [(bf16(*shape) * 50, bf16(*shape) * 50) for _ in range(m.layers if S <= 32 and query == 1 else 1)]
        self.tables = torch.randperm(S * blocks, device="cuda").to(torch.int32).view(S, blocks)
        at = torch.arange(context - query, context, device="cuda")
        self.slots = (self.tables.long()[:, at // 32] * 32 + at % 32).flatten()
        self.positions = at.to(torch.int32).repeat(S)
        self.starts = torch.arange(0, self.T + 1, query, device="cuda", dtype=torch.int32)
        self.shape = ops.StepShape(S if query == 1 else 0, query, context)
        self.ids = torch.randint(m.vocab, (self.T,), device="cuda", dtype=torch.int32)
        self.last = torch.arange(query - 1, self.T, query, device="cuda")
        self.h = torch.randn(self.T, m.hidden, device="cuda")
        self.x, self.x_qkv = bf16(self.T, m.hidden), bf16(self.T, decoder.qkv[0].shape[0])
        self.x_mixed, self.x_inner = bf16(self.T, m.q_heads * m.head_dim), bf16(self.T, m.inner)
        self.q = bf16(self.T, m.q_heads, m.head_dim) * 50
        if m.experts:
            self.routing = Routing(m.top_k, "softmax", norm_topk=True, scale=1.0)
            self.rows = torch.arange(self.T, device="cuda", dtype=torch.int32).repeat_interleave(m.top_k)
            self.logits = [ops.linear(self.x, router, dtype=torch.float32) for router in decoder.router]
            self.chosen, self.weights = ops.route(self.logits[0], None, self.routing)
            self.y = bf16(self.T, m.top_k, m.hidden)

    def attention(self, q: torch.Tensor, layer: int) -> torch.Tensor:
        """Of one layer."""
        cache = self.caches[layer % len(self.caches)]
        return ops.attention(q, cache, self.tables, self.starts, self.positions, self.shape)

    def rotary(self, qkv: torch.Tensor, layer: int) -> torch.Tensor:
        """Of one layer."""
        d, norms = self.d, (self.d.head_norm, self.d.head_norm)
        cache = self.caches[layer % len(self.caches)]
        return ops.rotary_store(qkv, None, norms, 1e-6, d.rotary, (self.positions, self.slots), cache)  # type: ignore[arg-type]

    def each(self) -> Iterator[Op]:
        """The ops with their least bytes and operations."""
        d, m, T, S = self.d, self.d.model, self.T, self.S
        H, width, mixed = m.hidden, d.qkv[0].shape[0], m.q_heads * m.head_dim

        def product(name: str, run: Callable[[int], object], N: int, K: int, out: int) -> Op:
            return Op(name, run, 2 * (N * K + T * K + T * out), 2 * T * N * K)

        pairs = S * self.query * (2 * self.context - self.query + 1) / 2
        kv = S * self.context * m.kv_heads * m.head_dim * 4
        yield Op("embedding", lambda _: ops.embedding(self.ids, d.head), T * H * 6, 0, once=True)
        yield Op("norm 1", lambda _: ops.add_rms_norm(self.h, self.x, d.norm, 1e-6), T * H * 12, 0)
        yield product("qkv", lambda i: ops.linear(self.x, d.qkv[i]), width, H, width)
        yield Op("rotary", lambda i: self.rotary(self.x_qkv, i), T * width * 4, 0)
        yield Op("attention", lambda i: self.attention(self.q, i), kv + T * mixed * 4, 4 * pairs * mixed)
        yield product("o", lambda i: ops.linear(self.x_mixed, d.o[i]), H, mixed, H)
        yield Op("norm 2", lambda _: ops.add_rms_norm(self.h, self.x, d.norm, 1e-6), T * H * 12, 0)
        if m.experts:
            yield from self.of_experts()
        else:
            yield product("gate up", lambda i: ops.linear_silu_mul(self.x, d.gate_up[i]), 2 * m.inner, H, m.inner)
            yield product("down", lambda i: ops.linear(self.x_inner, d.down[i]), H, m.inner, H)
        x = self.x[:S]
        head = Op("logits", lambda _: ops.linear(x, d.head, dtype=torch.float32), 0, 2 * S * m.vocab * H, once=True)
        yield head._replace(bytes=2 * m.vocab * H + 4 * S * m.vocab)

    def of_experts(self) -> Iterator[Op]:
        """Those in place of gate, up and down. Of the experts the bytes count of those that some token goes to."""
        d, m, T = self.d, self.d.model, self.T
        E, H, P, touched = m.experts, m.hidden, T * m.top_k, int((torch.bincount(self.chosen.view(-1)) > 0).sum())
        pairs = Pairs(self.rows, self.chosen.view(-1))
        router = Op("router", lambda i: ops.linear(self.x, d.router[i], dtype=torch.float32), 0, 2 * T * E * H)
        yield router._replace(bytes=2 * (E + T) * H + 4 * T * E)
        yield Op("route", lambda i: ops.route(self.logits[i], None, self.routing), 4 * T * E + 8 * P, 0)
        experts = Op("experts", lambda i: ops.experts(self.x, pairs, d.gate_up[i], d.down[i]), 0, 6 * P * m.inner * H)
        yield experts._replace(bytes=6 * touched * m.inner * H + 2 * T * H + 4 * P * m.inner + 2 * P * H)
        yield Op("combine", lambda _: ops.combine(self.y, self.weights, None), 2 * P * H + 2 * T * H, 0)

    def mlp(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Of one layer."""
        d, m = self.d, self.d.model
        if not m.experts:
            return ops.linear(ops.linear_silu_mul(x, d.gate_up[layer]), d.down[layer])
        chosen, weights = ops.route(ops.linear(x, d.router[layer], dtype=torch.float32), None, self.routing)
        y = ops.experts(x, Pairs(self.rows, chosen.view(-1)), d.gate_up[layer], d.down[layer])
        return ops.combine(y.view(self.T, m.top_k, m.hidden), weights, None)

    def forward(self) -> torch.Tensor:
        """The whole step, with the greatest logit for a sampler."""
        d, eps, y = self.d, 1e-6, None
        h = ops.embedding(self.ids, d.head)
        for i in range(d.model.layers):
            q = self.rotary(ops.linear(ops.add_rms_norm(h, y, d.norm, eps), d.qkv[i]), i)
            y = ops.linear(self.attention(q, i), d.o[i])
            y = self.mlp(ops.add_rms_norm(h, y, d.norm, eps), i)
        x = ops.add_rms_norm(h, y, d.norm, eps)
        x = x if self.query == 1 else x[self.last]
        return ops.linear(x, d.head, dtype=torch.float32).argmax(-1)


def measure(step: Step, limits: tuple[float, float]) -> dict[str, Any]:
    """Microseconds of each op and of the step, and the fraction of the limit that each reaches."""
    result: dict[str, Any] = {}
    layers, total, floor = step.d.model.layers, 0.0, 0.0
    for op in step.each():
        times = 1 if op.once else layers
        runs = max(8, times)
        us = replay_us(lambda op=op, runs=runs: [op.run(i % layers) for i in range(runs)]) / runs  # type: ignore[misc]
        limit = max(op.bytes / limits[0], op.flops / limits[1])
        result[op.name] = {"us": us, "limit_us": limit}
        total, floor = total + us * times, floor + limit * times
    result["sum"] = {"us": total, "limit_us": floor}
    result["step"] = {"us": replay_us(step.forward, 0.1), "limit_us": floor}
    usual, launch.early_rows = launch.early_rows, 0
    result["no early start"] = {"us": replay_us(step.forward, 0.1), "limit_us": floor}
    launch.early_rows = usual
    return result


def show(name: str, columns: dict[int, dict[str, Any]]) -> None:
    """One table of microseconds and fractions of the limit."""
    print(f"\n{name:16s}" + "".join(f"{rows:>16d}" for rows in columns))
    for op in next(iter(columns.values())):
        cells = [(column[op]["us"], column[op]["limit_us"]) for column in columns.values()]
        print(f"{op:16s}" + "".join(f"{us:10.1f} {limit / us:5.2f}" for us, limit in cells))
    print(
        f"{'tokens/s':16s}" + "".join(f"{rows / column['step']['us'] * 1e6:16.0f}" for rows, column in columns.items())
    )
    ratios = [BASELINE.get((name, rows), float("nan")) / column["step"]["us"] for rows, column in columns.items()]
    print(f"{'x vLLM default':16s}" + "".join(f"{ratio:16.2f}" for ratio in ratios))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    limits = copy_limit(), matrix_limit()
    print(f"{torch.cuda.get_device_name()}: copy {limits[0] / 1e6:.2f} TB/s, product {limits[1] / 1e6:.0f} TFLOP/s")
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "copy": limits[0], "product": limits[1]}
    for name in args.model or MODELS:
        decoder = Decoder(MODELS[name])
        columns: dict[int, dict[str, Any]] = {}
        for count, query in [(count, 1) for count in DECODES] + [(count, PROMPT) for count in PREFILLS]:
            columns[count * query] = measure(decoder.ops(count, query, CONTEXT if query == 1 else PROMPT), limits)
            torch.cuda.empty_cache()
        show(name, columns)
        report[name] = columns
        del decoder
        torch.cuda.empty_cache()
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
