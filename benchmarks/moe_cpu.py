"""The grouped expert product on a CPU beside a loop of torch linears over the experts, and their ratio.

    python -m benchmarks.moe_cpu --tokens 64 --threads 2

Both get the same rows and the same choices. The loop gathers the rows of each expert that has any, and runs torch's
linear, silu and product in float32 (what profile portable/1 computes in) and in bfloat16. Rounds of all take turns, and
the best of each counts: the machine may be shared.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from batchgen import kernels
from batchgen.kernels import PackedExperts, Pairs, Routing
from batchgen.kernels.cpu.native import library, machine, set_threads
from batchgen.kernels.packing import pack_experts

Tensor = torch.Tensor


def torch_loop(x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """[T, k, H], a linear for each expert that some token chose."""
    y = x.new_empty(*chosen.shape, x.shape[1])
    for expert in range(len(gate_up)):
        token, place = torch.where(chosen == expert)
        if len(token):
            gate, up = F.linear(x[token], gate_up[expert]).chunk(2, dim=-1)
            y[token, place] = F.linear(F.silu(gate) * up, down[expert])
    return y


def best(ways: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest of `rounds` calls of each."""
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


@torch.inference_mode()
def measure(tokens: int, experts: int, top_k: int, width: int, inner: int, rounds: int) -> dict[str, float]:
    """Seconds of each way to compute one layer's experts."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, width, generator=random).to(torch.bfloat16)
    gate_up = (torch.randn(experts, 2 * inner, width, generator=random) / width**0.5).to(torch.bfloat16)
    down = (torch.randn(experts, width, inner, generator=random) / inner**0.5).to(torch.bfloat16)
    logits = torch.randn(tokens, experts, generator=random)
    chosen, _ = kernels.route(logits, None, Routing(top_k, "softmax", True, 1.0))
    rows = torch.arange(tokens, dtype=torch.int32).repeat_interleave(top_k)
    pairs = Pairs(rows, chosen.reshape(-1))
    packed = pack_experts(gate_up), pack_experts(down)
    native = [PackedExperts(weight.data, weight.rows, native=True) for weight in packed]
    wide = x.float(), chosen, gate_up.float(), down.float()
    ways = {
        "portable/1": lambda: kernels.experts(x, pairs, *packed),
        "torch float32 loop": lambda: torch_loop(*wide),
        "torch bfloat16 loop": lambda: torch_loop(x, chosen, gate_up, down),
    }
    if library().has_amx():
        ways["native-amx/1"] = lambda: kernels.experts(x, pairs, native[0], native[1])
    return best(ways, rounds)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("experts", 32),
        ("top-k", 4),
        ("width", 512),
        ("inner", 256),
        ("threads", 2),
        ("rounds", 100),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 256])
    args = parser.parse_args()
    set_threads(args.threads)
    torch.set_num_threads(args.threads)
    print(f"{machine()}, torch {torch.__version__}, {args.experts} experts, {args.top_k} a token")
    for tokens in args.tokens:
        seconds = measure(tokens, args.experts, args.top_k, args.width, args.inner, args.rounds)
        flops = 6 * tokens * args.top_k * args.width * args.inner
        for name, time_ in seconds.items():
            ratio = seconds["torch float32 loop"] / time_
            print(
                f"{tokens:5} tokens  {name:20} {time_ * 1e3:8.3f} ms {flops / time_ / 1e9:7.1f} GFLOP/s  {ratio:5.2f} x"
            )


if __name__ == "__main__":
    main()
