"""Templates over a row: what they print, what they refuse to print, and that nothing but the row gets in."""

from typing import Any

import pytest

from batchgen.errors import RowError
from batchgen.row_template import RowTemplate, TemplateFault, compiled


@pytest.mark.parametrize(
    ("source", "values", "text"),
    [
        ("Write about {{ topic }}.", {"topic": "tides"}, "Write about tides."),
        ("{{ a }}{{ b }}", {"a": 3, "b": 0.5}, "30.5"),
        ("{% for x in tags %}\n- {{ x }}\n{% endfor %}", {"tags": ["a", "b"]}, "- a\n- b\n"),
        ("{{ name or 'nobody' }}", {"name": None}, "nobody"),
        ("{% if name %}{{ name }}{% endif %}!", {"name": None}, "!"),
        ("{{ meta | tojson }}", {"meta": {"b": "<é>", "a": [1]}}, '{"b": "<é>", "a": [1]}'),
        ("{{ tags | join(', ') }}", {"tags": ["a", "b"]}, "a, b"),
        ("{{ text }}", {"text": "{{ not_code }} <b>&"}, "{{ not_code }} <b>&"),
        ("no columns", {}, "no columns"),
        ("{{ person.name }}", {"person": {"name": "Ann"}}, "Ann"),
    ],
)
def test_what_is_printed(source: str, values: dict[str, Any], text: str) -> None:
    assert RowTemplate(source).render(values) == text


@pytest.mark.parametrize(
    ("source", "values", "message"),
    [
        ("{{ name }}", {"name": None}, "prints a null"),
        ("{{ meta }}", {"meta": {"a": 1}}, "of type dict: use a filter"),
        ("{{ tags }}", {"tags": ["a"]}, "of type list"),
        ("{{ name.upper }}", {"name": "a"}, "prints a value of type"),
        ("{{ tags | map('upper') }}", {"tags": ["a"]}, "of type generator"),
        ("{{ person.age }}", {"person": {"name": "Ann"}}, "UndefinedError"),
        ("{{ 1 // count }}", {"count": 0}, "ZeroDivisionError"),
        ("{{ name.__class__ }}", {"name": "a"}, "SecurityError"),
        ("{% for i in range(10**9) %}x{% endfor %}", {}, "OverflowError"),
    ],
)
def test_what_is_not_printed_fails_its_row(source: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError) as caught:
        RowTemplate(source).render(values)
    assert caught.value.code == "template"
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ topic", "is no template"),
        ("{% if %}", "is no template"),
        ("a\n{{ x | no_such_filter }}", "(line 2)"),
        ("{{ [1, 2] | random }}", "No filter named 'random'"),
        ("a\n{% include 'other' %}", "reads another file in line 2"),
        ("{% extends 'other' %}", "reads another file"),
        ("{% import 'other' as o %}", "reads another file"),
    ],
)
def test_what_is_no_template(source: str, message: str) -> None:
    with pytest.raises(TemplateFault) as caught:
        compiled(source)
    assert message in str(caught.value)


def test_the_columns_it_reads() -> None:
    source = "{% set y = a %}{% for x in rows %}{{ x ~ y }}{{ loop.index }}{% endfor %}{{ range(2) | join }}{{ b.c }}"
    assert compiled(source).names == {"a", "rows", "b"}


def test_chance_has_no_name_here() -> None:
    assert compiled("{{ lipsum() }}").names == {"lipsum"}  # a column that no file has: refused when the job is read
