"""n: how many samples a row has. Guards against seeds that hang on n or on the sibling's place (SGLang PR #28805, vLLM
#50440), and against samples of one prompt that share more than its prompt.
"""

from collections.abc import Callable, Iterable, Iterator

import pytest
from support.model_cases import PARAMS, as_bits, ask, ids, with_limits

from batchgen.engine.engine import Engine
from batchgen.records import Request
from batchgen.seeds import sample_seed

LENGTHS = (1, 31, 32, 33, 64, 70)
Sample = tuple[str, int]


def samples(n: int, rows: int = len(LENGTHS)) -> list[Request]:
    """Of each row, n; the rows' prompts end before, at and after the edges of blocks."""
    return [
        ask(f"row-{r}", ids(LENGTHS[r], r), PARAMS[1 + r % 4], sample_index=i) for r in range(rows) for i in range(n)
    ]


def made(engine: Engine, wanted: Iterable[Request], **limits: int) -> dict[Sample, str]:
    return {(c.row_key, c.sample_index): as_bits(c) for c in with_limits(engine, **limits).generate(wanted)}


@pytest.fixture(scope="module")
def eight(engine: Engine) -> dict[Sample, str]:
    """Every sample by itself."""
    return made(engine, samples(8), max_num_seqs=1)


@pytest.mark.parametrize("n", range(1, 9))
def test_n_begins_with_the_samples_of_less(engine: Engine, eight: dict[Sample, str], n: int) -> None:
    first = {sample: bits for sample, bits in eight.items() if sample[1] < n}
    for max_num_seqs in (64, 5):
        assert made(engine, samples(n), max_num_seqs=max_num_seqs) == first
    assert made(engine, samples(n)[::-1], max_num_batched_tokens=19) == first


def test_samples_differ(eight: dict[Sample, str]) -> None:
    assert len({bits.partition("[")[2] for bits in eight.values()}) == len(eight)


def test_beside_copies_of_the_row_under_other_keys(engine: Engine) -> None:
    """The same prompt and parameters: what is shared may be the prompt alone, and no copy answers like another."""
    prompt = ids(45)
    row = [ask("row", prompt, PARAMS[2], sample_index=i) for i in range(4)]
    copies = [ask(f"copy-{i}", prompt, PARAMS[2]) for i in range(4)]
    single = made(engine, [*row, *copies], max_num_seqs=1)
    for order in ([*row, *copies], [*copies, *row], [x for pair in zip(row, copies, strict=True) for x in pair]):
        assert made(engine, order, max_num_seqs=8) == single
        assert made(engine, order, max_num_seqs=3, num_blocks=9) == single
    answers = {bits.split("[", 2)[2].split("]")[0] for bits in single.values()}  # the token ids
    assert len(answers) == 8


def seeds_by_n(n: int) -> Callable[[Request], int]:
    return lambda request: sample_seed(7, f"{request.row_key} of {n}", request.sample_index)


def seeds_by_place(n: int) -> Callable[[Request], int]:
    places: Iterator[int] = iter(range(1000))
    return lambda request: sample_seed(7, "the job", next(places))


@pytest.mark.parametrize("fault", [seeds_by_n, seeds_by_place])
def test_counter_seeds_that_see_n_are_caught(engine: Engine, fault: Callable[[int], Callable[[Request], int]]) -> None:
    from dataclasses import replace

    def asked(n: int) -> list[Request]:
        seed = fault(n)
        return [replace(request, seed=seed(request)) for request in samples(n)]

    two, four = made(engine, asked(2)), made(engine, asked(4))
    assert not two.items() <= four.items()
