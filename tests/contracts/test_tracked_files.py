"""What is committed names no machine: no absolute home or work folder, and no host that is not on a short list."""

import re
from pathlib import Path

import pytest
from contracts.source_tree import ROOT, tracked_files

MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|root|home|Users|mnt/[a-z]+|data/[a-z]+)/[\w.-]+/")
HOST = re.compile(r"https?://(?:[^/\s\"'`<>)@]*@)?([\w.-]+\.[a-z]{2,})\b")
HOSTS = {"json-schema.org", "www.apache.org"} | {"schema.org", "mlcommons.org", "purl.org"}  # names of vocabularies
BINARY = {".parquet", ".png", ".safetensors", ".gguf"}
MAX_BYTES = 1_000_000


def machine_names(text: str) -> list[str]:
    paths = [match[0] for match in MACHINE_PATH.finditer(text)]
    hosts = [match[1] for match in HOST.finditer(text)]
    return paths + [host for host in hosts if host not in HOSTS and not host.endswith((".example", "example.com"))]


def test_no_file_names_a_machine() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in tracked_files() if path.suffix not in BINARY}
    found = {str(path.relative_to(ROOT)): names for path, text in texts.items() if (names := machine_names(text))}
    assert found == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("open('/ho" + "me/ann/y.txt')", ["/ho" + "me/ann/"]),
        ("pip install --index-url ht" + "tps://user:pass@mirror.local/simple", ["mirror.local"]),
        ("see ht" + "tps://json-schema.org/draft", []),
        ("rows/part-00000.parquet, ../work/x, RUN/rows/", []),
    ],
)
def test_a_planted_name_is_caught(text: str, names: list[str]) -> None:
    assert machine_names(text) == names


def test_no_file_is_large() -> None:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked_files()}
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}


def test_the_listing_is_not_empty() -> None:
    assert Path(__file__) in tracked_files()
