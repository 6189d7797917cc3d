"""Runs whose rows a test writes down, for the report, and what a reader of the page finds in it."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.fake_engine import FakeEngine, complete
from support.fake_jobs import make_job

from batchgen.errors import RowError
from batchgen.executor.local import run_local
from batchgen.executor.run_config import RunConfig
from batchgen.io.reader import InputRow
from batchgen.records import Completion, Request

Answer = Callable[[Request], Completion]
SELF_TEST = {"canary": "c" * 64, "ops": 11, "comparisons": 143}

SECTIONS = ["outcome", "lengths", "throughput", "diversity", "proof", "rows", "samples", "identity"]
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "</style></pre></details></main><h1>gone</h1>",
    "<!--",
    "]]><![CDATA[",
    "\"'><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;b&gt;&amp;&#0;&copy",
    "\0\x1b[31m\x07\x85",
    "\u202emoc.elpmaxe\u2066\u2069",
    "مرحبا بالعالم",
    "w" * 5000,
    "javascript:alert(1)",
]


@dataclass
class ScriptedEngine(FakeEngine):
    """Answers each request by `answer`, in order."""

    answer: Answer = complete

    def generate(self, requests: Iterable[Request | None]) -> Generator[Completion, None, None]:
        yield from map(self.answer, filter(None, requests))


def ok(request: Request, ids: Sequence[int], text: str = "text", reason: str = "stop") -> Completion:
    """An answer to `request`."""
    assert reason in ("stop", "length")
    return Completion(request.row_key, request.sample_index, tuple(ids), text, reason)  # type: ignore[arg-type]


def failed(request: Request, message: str = "logits are not finite") -> Completion:
    """No answer."""
    code = "non_finite_logits"
    return Completion(request.row_key, request.sample_index, (), "", "error", error_code=code, error_message=message)


def hostile(request: Request) -> Completion:
    """For a row key that begins with a number and |: that text of HOSTILE, as answers and as an error message."""
    at = int(request.row_key.split("|")[0])
    text = HOSTILE[at]
    return failed(request, text) if request.sample_index == 2 else ok(request, [at], text)


def write_run(folder: Path, keys: Sequence[str], answer: Answer = complete, **how: Any) -> Path:
    """A run in folder/run of one row for each key.

    `how`: `lengths` of the prompts (0 fails), sections of the job such as `sampling`, `rows_per_shard`, `about`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lengths = dict(zip(keys, how.pop("lengths", [7] * len(keys)), strict=True))
    nothing = {"label": pa.nulls(len(keys), pa.string()), "meta": pa.nulls(len(keys), pa.string())}
    pq.write_table(
        pa.table({"id": pa.array(keys, pa.string()), "prompt": pa.array(keys, pa.string()), **nothing}),
        folder / "in.parquet",
    )

    def build(row: InputRow) -> list[int]:
        if not lengths[row.row_key]:
            raise RowError("prompt_empty", f"no token in {row.row_key}")
        return list(range(lengths[row.row_key]))

    config = RunConfig(folder / "run", rows_per_shard=how.pop("rows_per_shard", 4))
    engine = ScriptedEngine(answer=answer, about=how.pop("about", {"self_test": SELF_TEST}))
    run_local(make_job(folder, build, **how), engine, config)
    return folder / "run"


class Page(HTMLParser):
    """The elements of a page in order, with their attributes, and its visible text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(html)
        self.close()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)
