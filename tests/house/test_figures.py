"""The figures of the house only get better, and they are counted right."""

from __future__ import annotations

from pathlib import Path

import pytest

from house.figures import AT_LEAST, FREE, figures_of, read_record, unrecorded, worse
from house.sources import PACKAGE, Module

TEXT = '''"""What it is for."""

from a import b
from c import (
    d,
)

LIMIT = 3  # measured


def shown(one: int) -> int:
    """Whether it is so."""
    # Because.
    if one > LIMIT:
        return _twice(one) + _twice(b) + _once(d)
    return one


def _twice(number: int) -> int:
    """A number, doubled."""
    return 2 * number


def _once(number: int) -> int:
    return number
'''


def module(name: str, text: str, *imports: str) -> Module:
    path = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
    return Module(name, path, text, frozenset(imports))


def test_they_only_get_better(modules: list[Module]) -> None:
    """A rule has two sides: what is better is recorded, so that it stays."""
    now, record = figures_of(modules), read_record()
    assert record.keys() == now.keys() - FREE
    assert worse(now, record) == []
    assert unrecorded(now, record) == [], "record it: make figures ARGS=--write"


def test_what_is_counted() -> None:
    modules = [
        module("compaction.a.run", TEXT),
        module("compaction.a.b.run", "class A: ...\n", "compaction.a.run"),
        module("compaction.b.other", "class A: ...\nclass _B: ...\n", "compaction.a.b.run", "os"),
    ]
    found = figures_of(modules)
    assert found["code_lines"] == 13 + 1 + 2
    assert (found["modules"], found["modules_too_short"], found["modules_too_long"]) == (3, 3, 0)
    assert (found["module_names_twice"], found["class_names_twice"]) == (2, 1)
    assert (found["one_importer_percent"], found["imported_from_outside_percent"]) == (66.7, 66.7)
    assert found["import_percent"] == pytest.approx(25)
    assert found["private_used_once_percent"] == 50
    assert found["docstrings_by_question_percent"] == 50
    assert found["comments_per_100_branches"] == 200
    assert found["named_one_per_10000"] > 1000


def test_both_sides_are_seen(tmp_path: Path) -> None:
    record = {"import_percent": 10.0, "comments_per_100_branches": 30.0}
    assert {"comments_per_100_branches"} == record.keys() & AT_LEAST
    assert worse({"import_percent": 10.05, "comments_per_100_branches": 29.9}, record) == []
    assert unrecorded({"import_percent": 9.9, "comments_per_100_branches": 30.5}, record) == []
    assert worse({"import_percent": 10.5, "comments_per_100_branches": 29.0}, record) == [
        "import_percent is 10.5, at most 10 was reached",
        "comments_per_100_branches is 29, at least 30 was reached",
    ]
    assert unrecorded({"import_percent": 9.0, "comments_per_100_branches": 32.0}, record) == [
        "import_percent is 9, 10 is recorded",
        "comments_per_100_branches is 32, 30 is recorded",
    ]
