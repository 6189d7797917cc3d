"""Which of several texts does the model find likeliest after a prompt? It is asked, by the engine of the run."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from batchgen.engine.scoring import Score, score_of
from batchgen.errors import RowError
from batchgen.evals.evaluate import Evaluation, ScoredRun
from batchgen.evals.items import Item
from batchgen.executor.base import Engine
from batchgen.records import Request, SamplingParams
from batchgen.spec_evals import EvalSpec
from batchgen.text.tokenizer import Tokenizer

_PLAIN = SamplingParams(temperature=0, logprobs=1)


@dataclass(slots=True)
class _Asked:
    """One row whose choices are being scored."""

    row: Mapping[str, Any]
    texts: list[str]
    right: int
    ids: list[list[int]]
    scores: list[Score | None]
    error: str | None = None


def score_choices(scored: ScoredRun, spec: EvalSpec, engine: Engine, tokenizer: Tokenizer) -> Evaluation:
    """Of the first sample of each row, whose prompt the choices go on. Ties go to the first of the likeliest.

    A row without a prompt, with choices or an answer that cannot be used, or whose logits are not finite, is an item
    without a score. Raises EngineError as the engine does.
    """
    items: dict[str, Item] = {}
    order: list[str] = []
    asked: dict[str, _Asked] = {}

    def requests() -> Iterator[Request]:
        for row in scored.rows("prompt_token_ids"):
            if row["sample_index"]:
                continue
            key = row["row_key"]
            order.append(key)
            try:
                work = _read(row, spec, tokenizer)
            except RowError as error:
                items[key] = Item(key, 0, row["row_hash"], None, error=str(error))
                continue
            asked[key] = work
            for index, ids in enumerate(work.ids):
                yield Request(key, index, 0, tuple(row["prompt_token_ids"]), _PLAIN, continuation=tuple(ids))

    with closing(engine.generate(requests())) as completions:
        for completion in completions:
            work = asked[completion.row_key]
            if completion.error_code is not None:
                work.error = f"{completion.error_code}: {completion.error_message}"
                work.scores[completion.sample_index] = Score((), ())
            else:
                work.scores[completion.sample_index] = score_of(completion)
            if None not in work.scores:
                items[completion.row_key] = _item(asked.pop(completion.row_key), spec)
    return scored.finish(spec, [items[key] for key in order])


def _read(row: Mapping[str, Any], spec: EvalSpec, tokenizer: Tokenizer) -> _Asked:
    """Raises RowError for a row that has no prompt, no choices, or no right one."""
    assert spec.choices is not None
    assert spec.answer is not None
    if not row["prompt_token_ids"]:
        raise RowError(row["error_code"] or "prompt_null", "the row has no prompt")
    texts, answer = row[spec.choices], row[spec.answer]
    if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(text, str) and text for text in texts):
        raise RowError("prompt_type", f"column {spec.choices} holds no list of two texts or more")
    if isinstance(answer, str) and answer in texts:
        answer = texts.index(answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(texts):
        raise RowError("prompt_type", f"column {spec.answer} names none of the choices")
    ids = [tokenizer.encode_continuation(text) for text in texts]
    return _Asked(row, texts, answer, ids, [None] * len(texts))


def _item(work: _Asked, spec: EvalSpec) -> Item:
    key, row_hash = work.row["row_key"], work.row["row_hash"]
    if work.error is not None:
        return Item(key, 0, row_hash, None, error=work.error)
    totals = [score.total if score else 0.0 for score in work.scores]
    sizes = [_size(text, ids, spec) for text, ids in zip(work.texts, work.ids, strict=True)]
    weighed = [total / size for total, size in zip(totals, sizes, strict=True)]
    chosen = weighed.index(max(weighed))
    return Item(
        key,
        0,
        row_hash,
        float(chosen == work.right),
        value=work.texts[chosen],
        choice=chosen,
        logprobs=tuple(totals),
    )


def _size(text: str, ids: list[int], spec: EvalSpec) -> int:
    return {"text": 1, "token": len(ids), "byte": len(text.encode())}[spec.per]
