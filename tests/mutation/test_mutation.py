"""The table of defects is true of the sources as they are, and what `make mutate` says of a defect is true as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mutation.__main__ import main
from mutation.defect import Defect
from mutation.defects import DEFECTS
from mutation.hunt import ORIGINAL, Found, Run, Verdict

AREAS = {"commit", "recovery", "fence", "sweep", "plan", "proof", "index", "cleanup", "retention", "orphans"} | {
    "registration", "election", "leases", "tokens", "scheduler", "jobs", "preview"
} | {
    "layers", "reading", "diff", "swap", "writing", "commits", "merges", "resets", "format", "claims",
    "receipts", "rewrite", "sensor", "sweep of tokens", "sweep of objects", "lakefs",
    "damage", "live lakeFS",
} | {
    f"catalog {part}" for part in ("restrictions", "version", "checks", "answers", "order", "tokens", "rounds")
}  # fmt: skip
TOKENS = "leases/record.py"


def _headings(page: Path) -> set[str]:
    """The headings of a page as they are linked to."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_can_be_put_into_the_sources_and_breaks_a_promise(defect: Defect) -> None:
    sound = defect.path(ORIGINAL).read_text()
    compile(defect.applied(sound), defect.file, "exec")
    page, _, heading = defect.promise.partition("#")
    assert heading in _headings(ORIGINAL / "docs" / page)
    for killer in defect.killers:
        file, _, function = killer.partition("::")
        assert f"def {function}(" in (ORIGINAL / "tests" / file).read_text() or not function


def test_no_part_is_without_defects() -> None:
    names = [defect.name for defect in DEFECTS]
    assert {name.partition(":")[0] for name in names} == AREAS
    assert len(set(names)) == len(names)


def test_a_text_that_stands_twice_or_nowhere_is_no_defect() -> None:
    defect = Defect("jobs: two", "control-plane.md#2-clocks", TOKENS, "a", "b", ())
    assert defect.applied("xax") == "xbx"
    for text in ("aa", "x"):
        with pytest.raises(ValueError, match="jobs: two"):
            defect.applied(text)


def test_tests_that_could_not_run_say_nothing() -> None:
    """pytest ends with 2 when a file cannot be imported, with 4 or 5 when there are no such tests."""
    nobody = Run(code=2, failed=None, output="", seconds=0.0)
    assert Found(DEFECTS[0], nobody).verdict is Verdict.BROKEN


def test_a_survivor_is_told_from_what_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    """Really run, on a small file; the sources are untouched."""
    path = ORIGINAL / "operator" / "compaction" / TOKENS
    before = path.read_text()
    text, killers = "    token = max(known, default=0) + 1", ("leases/test_record.py",)
    wrong = Defect("wrong", "", TOKENS, text, "    token = max(known, default=0)", killers)
    other = Defect("other", "", TOKENS, text, "    token = 1 + max(known, default=0)", killers)
    assert main([], defects=[wrong, other]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^wrong: killed by tests/leases/test_record.py::\S+ after \d+ s$", said, re.MULTILINE)
    assert re.search(r"^other: SURVIVED leases/test_record.py", said, re.MULTILINE)
    assert "2 defects: 1 killed, 1 SURVIVED;" in said
    assert path.read_text() == before
