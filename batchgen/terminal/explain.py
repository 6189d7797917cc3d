"""Why a row differs: what is stored, what is made here on each side, and the op at which they part."""

from rich.rule import Rule
from rich.text import Text

from batchgen.terminal import OUT, count, facts, plain
from batchgen.terminal.replay import draw_view
from batchgen.verify.elements import Elements
from batchgen.verify.explain import Culprit, Explanation, SideReport
from batchgen.verify.mismatch import Mismatch

_SHORT = 16  # characters of a digest


def print_explanation(found: Explanation) -> None:
    """Row, stored difference, manifests, sides, culprit; the last line says it in one sentence."""
    title = Text.assemble(plain(found.row_key, "bold"), f" · sample {found.sample_index}")
    OUT.print(Rule(title, align="left", style="dim"))
    pairs: list[tuple[str, object]] = [("run A" if found.run_b else "run", found.run_a), ("run B", found.run_b)]
    a, b = ("A", "B") if found.run_b else ("first", "second")
    pairs += [("stored" if found.run_b else "probe failed", place(found.stored, a, b))] if found.stored else []
    pairs += [
        ("" if at else "manifests", f"{fact.key}: {_short(fact.a)} in A, {_short(fact.b)} in B")
        for at, fact in enumerate(found.facts)
    ]
    stored = "first answer" if found.stored and not found.run_b else "stored row"
    pairs += [
        (side.name if len(side.name) > 1 else f"side {side.name}", side_view(side, stored)) for side in found.sides
    ]
    if found.sides:
        first, last = found.sides[0].name, found.sides[-1].name
        pairs.append(("made here", place(found.made, first, last) if found.made else "the same row on both sides"))
        pairs.append(("ops", "every op gives the same bits on both sides" if found.culprit is None else None))
    if found.culprit:
        pairs += culprit_pairs(found.culprit)
    OUT.print(facts(pairs))
    if found.stored and (draw := found.stored.draw):
        OUT.print()
        OUT.print(draw_view(draw, (a, b)))
    OUT.print()
    verdict = ("differs", "bold red") if found.differs else ("same", "bold")
    OUT.print(Text.assemble(verdict, plain(f": {found.conclusion}")), soft_wrap=True)


def place(mismatch: Mismatch, a: str, b: str) -> str:
    """token_ids[4]: A has 123, B has 88; and logprobs, text"""
    old, new = ("nothing" if value is None else str(value) for value in (mismatch.stored, mismatch.made))
    others = f"; and {mismatch.others} differ" if mismatch.others else ""
    return f"{mismatch.place}: {a} has {old}, {b} has {new}{others}"


def side_view(side: SideReport, stored: str) -> Text:
    """How it was made, and whether that gave what is `stored`."""
    how = side.how
    shared = "prefix cache" if how["prefix_cache"] else "no prefix cache"
    beside = f"beside {count(side.company, 'row')}" if side.company else "nobody beside it"
    text = f"{beside}; at most {how['max_num_seqs']} at once, {how['max_num_batched_tokens']} tokens a step, {shared}\n"
    if side.reproduced:
        return Text.assemble(text, f"gives the {stored}, bit for bit")
    if side.is_second:
        return Text.assemble(text, "gives the second answer, bit for bit")
    lines = place(side.mismatch, "it", "this machine") if side.mismatch else ""
    return Text.assemble(text, (f"does not give the {stored}: ", "red"), plain(lines))


def culprit_pairs(culprit: Culprit) -> list[tuple[str, object]]:
    """The op, the position, and the values themselves."""
    where = f"the prompt's token {culprit.position}"
    if culprit.output_token is not None:
        where = f"output token {culprit.output_token}"
    pairs: list[tuple[str, object]] = [
        ("parts in", plain(culprit.label, "bold")),
        ("at", f"position {culprit.position}: {where}, {culprit.token_id} {culprit.text!r}"),
    ]
    if culprit.op == "prefix_cache":
        return [*pairs, ("inputs", f"never computed on {culprit.sides[0]}: the block is one of other tokens")]
    pairs.append(("inputs", "equal, bit for bit" + (" when written" if culprit.op == "attention" else "")))
    pairs += [("outputs", elements_view(found, culprit.sides)) for found in culprit.elements]
    if not culprit.elements:
        pairs.append(("outputs", "differed once, and not when both sides were made again: it does not repeat"))
    return pairs


def elements_view(found: Elements, sides: tuple[str, ...]) -> str:
    """3 of 128 elements of q differ, the first [0, 5]: 0.25 (0x3e80) on A, 0.251 (0x3e81) on B"""
    name = "" if found.output == "out" else f" of {found.output}"
    a, b = sides
    second = "the same side, another time" if a == b else b
    return (
        f"{found.differing} of {count(found.of, 'element')}{name} {'differs' if found.differing == 1 else 'differ'}, "
        f"first {list(found.index)}: {found.a:.9g} ({found.a_bits}) on {a}, {found.b:.9g} ({found.b_bits}) on {second}"
    )


def _short(value: object) -> str:
    text = str(value)
    is_digest = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return f"{text[:_SHORT]}…" if is_digest else text
