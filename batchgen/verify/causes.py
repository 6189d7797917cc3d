"""What two manifests can prove: in which respects two jobs differ, and which of these can act on which rows.

A difference acts on some effects and not on others: a changed `where` decides which rows there are, and cannot bend a
logprob. A category of rows is explained only by differences that can act on it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from batchgen.io.manifest import Manifest
from batchgen.io.same_job import differences

Effect = Literal[
    "rows",  # which rows there are
    "prompt",  # what a row asks
    "params",  # params_hash
    "seed",
    "prompt_error",  # whether a prompt can be made, and what it is refused for
    "engine_error",
    "tokens",
    "logprobs",
    "answer",  # text and how it ended, of the same tokens
    "carried",  # values of passthrough columns
    "columns",  # which columns there are
]
Verdict = Literal["same", "cause", "all_of", "one_of", "unfinished", "unexplained"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One respect in which two runs differ: a dotted key of the spec, or a part of the fingerprint."""

    key: str
    a: Any  # JSON; None where that run has no such key
    b: Any


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the rows of a category differ, as far as the manifests can tell.

    `cause`: the only difference that can act on them. `all_of`: they differ by each of these. `one_of`: by one or more
    of these. `unfinished`: they are still to be made. `unexplained`: nothing that can act on them differs.
    """

    verdict: Verdict
    differences: tuple[Difference, ...] = ()


SAME = Cause("same")
UNFINISHED = Cause("unfinished")


@dataclass(frozen=True, slots=True)
class Suspects:
    """`acting`: differences and what each can act on. `circumstances`: differences that change no bit of any row."""

    acting: tuple[tuple[Difference, frozenset[Effect]], ...]
    circumstances: tuple[Difference, ...]
    version: Difference | None = field(default=None)  # of batchgen; can act on whatever is computed

    def explain(self, effects: frozenset[Effect]) -> Cause:
        """The cause of rows in which these effects are seen."""
        found = [difference for difference, acts in self.acting if acts & effects]
        if self.version and (not found or effects & _COMPUTED):
            found.append(self.version)
        if not found:
            return Cause("unexplained")
        if len(found) == 1:
            return Cause("cause", tuple(found))
        return Cause("all_of" if effects <= {"params", "seed"} else "one_of", tuple(found))


def suspects(a: Manifest, b: Manifest) -> Suspects:
    """Every difference between the manifests of two runs that says something about their rows."""
    acting: list[tuple[Difference, frozenset[Effect]]] = []
    circumstances: list[Difference] = []
    for difference in (*_files(a, b), *_spec(a, b), *_parts(a, b)):
        effects = _effects(difference.key, a, b)
        if effects:
            acting.append((difference, effects))
        else:
            circumstances.append(difference)
    if (digest := _unexplained_input(a, b)) and not any(acts & {"rows", "carried"} for _, acts in acting):
        acting.append((digest, _INPUT))
    version = None
    if a.batchgen_version != b.batchgen_version:
        version = Difference("batchgen_version", a.batchgen_version, b.batchgen_version)
    return Suspects(tuple(acting), (*circumstances, *_circumstances(a, b)), version)


_INPUT: frozenset[Effect] = frozenset({"rows", "prompt", "prompt_error", "carried"})
_COMPUTED: frozenset[Effect] = frozenset({"prompt", "prompt_error", "engine_error", "tokens", "logprobs", "answer"})
_EVERYTHING: frozenset[Effect] = _INPUT | _COMPUTED | {"params", "seed", "columns"}
_MODEL: frozenset[Effect] = frozenset({"tokens", "logprobs", "engine_error"})
_PROMPT: frozenset[Effect] = frozenset({"prompt", "prompt_error"})
_NONE: frozenset[Effect] = frozenset()

_A_PROMPT = re.compile(r"\]\.(columns|(prompt|messages)_template)\b")  # what the prompt of a row is made of

# The first pattern that fits the whole key decides.
_RULES: tuple[tuple[str, frozenset[Effect]], ...] = (
    (r"file .*", _INPUT),
    (r"inputs\[\d+\]\.(path|run|root)", _NONE),  # the files themselves are compared
    (r"inputs\[\d+\]\.(where|limit|sample\b.*)", frozenset({"rows"})),
    (r"inputs\[\d+\]\.(columns|prompt_template|messages_template)\b.*", _PROMPT),
    (r"inputs\[\d+\]\.passthrough\b.*", frozenset({"columns"})),
    (r"inputs\[\d+\]\.sampling\b.*", frozenset({"params", "prompt_error", "columns"})),
    (r"inputs\b.*", _INPUT | {"columns"}),
    (r"row_key\..*", _INPUT),
    (r"sampling\.n", frozenset({"rows"})),
    (r"sampling\..*", frozenset({"params"})),
    (r"seed", frozenset({"seed"})),
    (r"model\.generation_config", frozenset({"params"})),  # what else it does is in limits
    (r"model\.chat_template.*", _PROMPT),
    (r"(model|limits)\.max_model_len", frozenset({"prompt_error"})),
    (r"prompts\..*", _PROMPT),
    (r"logprobs_mode", frozenset({"logprobs"})),
    (r"numerics|kernel_set|canary|weights_digest", _MODEL),
    (r"tokenizer_digest", _PROMPT | {"tokens", "answer"}),
    (r"limits\.eos_token_ids", frozenset({"tokens", "answer"})),
    (r"name|version|model\.(path|sha256|tokenizer|load_format)", _NONE),  # names; digests tell what stands under them
)


def _effects(key: str, a: Manifest, b: Manifest) -> frozenset[Effect]:
    """What a difference under `key` can act on; everything, where no rule knows the key."""
    acts = next((effects for pattern, effects in _RULES if re.fullmatch(pattern, key, re.DOTALL)), _EVERYTHING)
    settings = [(m.spec.get("row_key"), m.spec.get("prompts")) for m in (a, b)]
    if (
        acts == {"rows"}
        and key != "sampling.n"
        and any(_is(row_key, "on_duplicate", "suffix") for row_key, _ in settings)
    ):
        acts = _INPUT  # k#2 is the second of the rows taken
    if acts == _INPUT and any(_has_own_sampling(m.spec) for m in (a, b)):
        acts = acts | {"params"}
    if _A_PROMPT.search(key) and any(_is(row_key, "derive", "content_hash") for row_key, _ in settings):
        acts = acts | {"rows"}
    truncates = any(_is(prompts, "overlong", "truncate_left") for _, prompts in settings)
    if truncates and key.endswith(("max_model_len", "sampling.max_tokens")):
        acts = acts | {"prompt"}
    return acts


def _has_own_sampling(spec: Mapping[str, Any]) -> bool:
    inputs = spec.get("inputs")
    return isinstance(inputs, list) and any(isinstance(one, Mapping) and "sampling" in one for one in inputs)


def _is(section: Any, key: str, value: str) -> bool:
    return isinstance(section, Mapping) and section.get(key) == value


def _files(a: Manifest, b: Manifest) -> Iterator[Difference]:
    """Input files of other bytes, and those of one run alone. A name matters only where row keys are made of it."""
    left, right = ({_label(m, at): file.sha256 for at, file in enumerate(m.inputs)} for m in (a, b))
    if list(left.values()) == list(right.values()) and not any(
        _is(m.spec.get("row_key"), "derive", "file_and_row") for m in (a, b)
    ):
        return
    for label in dict.fromkeys([*left, *right]):
        if left.get(label) != right.get(label):
            yield Difference(f"file {label}", _sha256(left.get(label)), _sha256(right.get(label)))


def _label(manifest: Manifest, at: int) -> str:
    """The file's path; with #2 for the second of a path."""
    path = manifest.inputs[at].path
    earlier = sum(file.path == path for file in manifest.inputs[:at])
    return f"{path}#{earlier + 1}" if earlier else path


def _sha256(digest: str | None) -> str | None:
    return None if digest is None else f"SHA-256 {digest}"


def _spec(a: Manifest, b: Manifest) -> Iterator[Difference]:
    for key, left, right in differences(a.spec, b.spec):
        yield Difference(key, left, right)


def _parts(a: Manifest, b: Manifest) -> Iterator[Difference]:
    """Parts of the fingerprint, but for those that follow from another difference."""
    names = sorted(a.fingerprint.keys() | b.fingerprint.keys())
    odd = {name for name in names if a.fingerprint.get(name) != b.fingerprint.get(name)}
    follow = {"job_fingerprint", "inputs_digest", "params_hash", "numerics", "limits"}
    if "numerics" in odd:
        follow |= {"kernel_set", "canary"}
    if odd & {"weights_digest", "kernel_set"}:
        follow |= {"canary"}
    for name in sorted(odd - follow):
        yield Difference(name, a.fingerprint.get(name), b.fingerprint.get(name))
    if "limits" in odd:
        left, right = (json.loads(m.fingerprint.get("limits", "{}")) for m in (a, b))
        told = {key.removeprefix("model.") for key, *_ in differences(a.spec, b.spec)}
        if "tokenizer_digest" in odd:
            told |= {"eos_token_ids"}
        for key in sorted((left.keys() | right.keys()) - told):
            if left.get(key) != right.get(key):
                yield Difference(f"limits.{key}", left.get(key), right.get(key))


def _unexplained_input(a: Manifest, b: Manifest) -> Difference | None:
    """Other rows of the same files: a condition that did not select what it selected before."""
    digests = [m.fingerprint.get("inputs_digest") for m in (a, b)]
    labels, taken = ([[getattr(file, name) for file in m.inputs] for m in (a, b)] for name in ("path", "rows"))
    if digests[0] == digests[1] or (labels[0] != labels[1] and taken[0] == taken[1]):
        return None
    return Difference("inputs_digest", *digests)


def _circumstances(a: Manifest, b: Manifest) -> Iterator[Difference]:
    """How the rows were made, which changes no bit of them."""
    left, right = (
        {
            "run_config": {**m.run_config, "rows_per_shard": m.plan.rows_per_shard, "job_dir": None},
            "engine": {**m.engine, "self_test": None},
        }
        for m in (a, b)
    )
    return (Difference(*found) for found in differences(left, right))
