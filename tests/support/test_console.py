"""Documents whose examples run: a wrong one is caught."""

import os
from pathlib import Path

import pytest
from support.console import Command, check, commands, matches

DOCUMENT = """\
Text, and a block of another kind:

```sh
$ false
```

```console
$ echo one; echo "two  3"
one
two …
$ printf 'a\\nb\\nc\\n' && \\
  exit 3
a
…
exit code 3
$ true
```
"""


def test_a_document_runs(tmp_path: Path) -> None:
    found = commands(DOCUMENT)
    assert [command.exit_code for command in found] == [0, 3, 0]
    for command in found:
        check(command, tmp_path, dict(os.environ))


@pytest.mark.parametrize(
    "wrong",
    [
        Command("echo one", ("two",), 0),
        Command("echo one; echo two", ("one",), 0),
        Command("echo one", ("one", "two"), 0),
        Command("echo one", ("one",), 1),
        Command("exit 8", (), 0),
    ],
)
def test_a_wrong_one_is_caught(tmp_path: Path, wrong: Command) -> None:
    with pytest.raises(AssertionError, match="should"):
        check(wrong, tmp_path, dict(os.environ))


def test_dots_stand_for_what_changes() -> None:
    assert matches(("root …", "…", "made … samples in …"), "root abc\n\nx\ny\nmade 24 samples in  0:10\n")
    assert matches(("…",), "")
    assert not matches(("root a…",), "root b\n")
