"""What the engine must give, computed the slow and obvious way: one request at a time, no cache, no increments."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from support.fake_runner import EOS, FakeDecoder, draw, write_cell

from batchgen.engine.stop import Ending
from batchgen.records import Completion, Request, SamplingParams


def expected_completion(request: Request) -> Completion:
    output: list[int] = []
    draws = []
    while (ending := expected_ending(output, request.params)) is None:
        cells = [0]
        for position, token_id in enumerate((*request.prompt_token_ids, *output)):
            cells.append(write_cell(cells[-1], token_id, position))
        draws.append(draw(cells[1:], request, Counter(output), _banned(request, output)))
        output.append(draws[-1].token_id)
    kept = draws[: ending.num_tokens]
    wanted = request.params.logprobs is not None
    return Completion(
        row_key=request.row_key,
        sample_index=request.sample_index,
        token_ids=tuple(output[: ending.num_tokens]),
        text=ending.text,
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        logprobs=tuple(d.logprob for d in kept) if wanted else None,
        top_logprobs_ids=tuple(d.top_ids for d in kept) if wanted else None,
        top_logprobs_values=tuple(d.top_values for d in kept) if wanted else None,
    )


def expected_ending(output: Sequence[int], params: SamplingParams) -> Ending | None:
    """The ending after exactly these tokens, none of whose proper prefixes has one."""
    if not output:
        return None
    eos = set() if params.ignore_eos else {EOS}
    ends_here = output[-1] in eos | set(params.stop_token_ids)
    final = ends_here or len(output) == params.max_tokens
    visible = output[:-1] if ends_here and not params.include_stop_str_in_output else output

    settled = [_text(visible[:k], params, final=False) for k in range(len(output) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(settled))
    text = _text(visible, params, final=final)
    if len(output) > params.min_tokens:
        matches = [
            (start + len(stop), start, stop)
            for stop in params.stop
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) > len(settled[params.min_tokens])
        ]
        if matches:
            end, start, stop = min(matches)
            text = text[: end if params.include_stop_str_in_output else start]
            kept = [k for k in range(len(settled)) if settled[k].startswith(text)]
            return Ending("stop", stop, text, kept[0] if kept else len(output))
    if ends_here:
        return Ending("stop", None if output[-1] in eos else output[-1], text, len(output))
    return Ending("length", None, text, len(output)) if final else None


def _text(token_ids: Sequence[int], params: SamplingParams, *, final: bool) -> str:
    decoder = FakeDecoder(params.skip_special_tokens)
    text = "".join(map(decoder.push, token_ids))
    return text + decoder.finish() if final else text


def _banned(request: Request, output: list[int]) -> set[int]:
    params = request.params
    banned = set()
    if len(output) < params.min_tokens:
        banned |= set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    for word in request.bad_words_token_ids:
        for token_id in range(EOS + 1):
            if (*output, token_id)[-len(word) :] == word:
                banned.add(token_id)
    return banned
