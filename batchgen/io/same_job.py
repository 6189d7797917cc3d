"""Is the run in a folder one of the job that is asked for? If not, what is the difference?"""

from collections.abc import Iterator, Mapping
from typing import Any

from batchgen.errors import RunError
from batchgen.io.manifest import Manifest
from batchgen.places import Place


def refuse_other_job(path: Place, there: Manifest, asked: Manifest) -> None:
    """Raise RunError, naming what differs, unless both are of the same job."""
    parts = sorted(there.fingerprint.keys() | asked.fingerprint.keys())
    odd = [part for part in parts if there.fingerprint.get(part) != asked.fingerprint.get(part)]
    if not odd:
        return
    if odd == ["canary"]:
        raise RunError(
            "this machine computes the model differently from the one that began the run",
            where=str(path),
            hint=f"its canary is {there.fingerprint.get('canary')}, and here it is {asked.fingerprint.get('canary')}: "
            "one of the two machines or builds is at fault, and --out begins a run of its own",
        )
    details = [f"{part} is {there.fingerprint.get(part)}, not {asked.fingerprint.get(part)}" for part in odd]
    if "job_fingerprint" in odd:
        details = [f"{key} is {a!r}, not {b!r}" for key, a, b in differences(there.spec, asked.spec)] or details
    elif "inputs_digest" in odd and (other := _source_roots(there, asked)):
        details = [f"the source run changed: its root was {then}, and is {now}" for then, now in other]
    elif "inputs_digest" in odd:
        changed = sorted({file.path for file in set(there.inputs) ^ set(asked.inputs)})
        details = [f"the input is another: {', '.join(changed) or 'the rows taken'}"]
    raise RunError(
        f"is a run of another job: {'; '.join(details[:3])}",
        where=str(path),
        hint="choose another folder with --out, where --reuse of this one takes the samples that are still the same; "
        "or undo the change to go on with this run",
    )


def _source_roots(there: Manifest, asked: Manifest) -> list[tuple[str, str]]:
    """(then, now) of each source run of a job whose root is another."""
    then, now = ([*dict.fromkeys(file.run_root for file in m.inputs if file.run_root)] for m in (there, asked))
    return [(a, b) for a, b in zip(then, now, strict=False) if a != b]


def differences(a: Any, b: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value in a, value in b) wherever two JSON values differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted(a.keys() | b.keys()):
            yield from differences(a.get(name), b.get(name), f"{key}.{name}".lstrip("."))
    elif _sections(a) and _sections(b) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from differences(left, right, f"{key}[{index}]")
    elif a != b or type(a) is not type(b):
        yield key, a, b


def _sections(value: Any) -> bool:
    """A list of objects, such as inputs; any other list is one value."""
    return isinstance(value, list) and all(isinstance(element, Mapping) for element in value)
