"""The thread pool: several Python threads at once, and a forked child, neither of which may hang or mix results."""

import multiprocessing
import threading
from collections.abc import Iterator

import pytest
import torch
from support.bitwise import assert_bitwise

from batchgen import kernels
from batchgen.kernels.cpu.native import library, set_threads
from batchgen.kernels.packing import pack


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    set_threads(2)
    yield
    set_threads(1)


def product(seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 64, generator=random).to(torch.bfloat16)
    return kernels.linear(x, pack(torch.randn(200, 64, generator=random).to(torch.bfloat16)))


def test_two_python_threads_at_once() -> None:
    expected = [product(seed) for seed in (0, 1)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(200):
            if not torch.equal(product(seed), expected[seed]):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def child(results: "multiprocessing.SimpleQueue[bytes]") -> None:
    results.put(product(3).numpy().tobytes())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_computes() -> None:
    expected = product(3)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[bytes] = context.SimpleQueue()
    process = context.Process(target=child, args=(results,))
    process.start()
    process.join(60)
    assert process.exitcode == 0, "the child hangs or died"
    assert results.get() == expected.numpy().tobytes()


def test_sizes() -> None:
    for n in (1, 4, 2):
        set_threads(n)
        assert library().threads() == n
        assert_bitwise(product(5), product(5))
    with pytest.raises(ValueError, match="at least one thread"):
        set_threads(0)
