"""Whether two policies can select the same directory: the answer of the patterns agrees with matching real paths."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.core.planning.overlap import Selection, overlap
from compaction.segments.scan.find import compile_globs, matches

NAMES = ("a", "b", "ab", "c1", "[")
PATHS = ["", *("/".join(names) for depth in (1, 2, 3) for names in itertools.product(NAMES, repeat=depth))]


def both(one: Selection, other: Selection) -> bool:
    answer = overlap(one, other)
    assert overlap(other, one) is answer
    return answer


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ((["**"], []), (["**"], []), True),
        ((["**"], []), (["*"], []), True),
        ((["*"], []), (["*/*"], []), False),
        ((["a/**"], []), (["b/**"], []), False),
        ((["a/**"], []), (["**"], ["a", "a/**"]), False),
        ((["a/**"], []), (["**"], ["a"]), True),  # an exclude takes away what it matches, not what is below
        ((["a/**"], []), (["**"], ["a/*"]), True),
        ((["log-*"], []), (["*-1"], []), True),
        ((["log-[0-9]"], []), (["log-[a-f]"], []), False),
        ((["log-[0-9]"], []), (["log-[!1-9]"], []), True),
        ((["log-?"], []), (["log-??"], []), False),
        ((["**/archive/**"], []), (["live/**"], []), True),
        ((["**/archive/**"], []), (["live/*"], ["live/archive"]), False),
        ((["x", "y", "z"], []), (["w", "z"], []), True),
        ((["*a*b*"], []), (["*b*a*"], []), True),
        ((["**"], ["**"]), (["**"], []), False),
    ],
)
def test_known_pairs(one: tuple[list[str], list[str]], other: tuple[list[str], list[str]], answer: bool) -> None:
    assert both(Selection.of(*one), Selection.of(*other)) is answer


def test_a_root_inside_the_other_ones() -> None:
    everything, deeper = Selection.of(["**"], []), Selection.of(["**"], [], below=["ra", "eu[1]*"])
    assert both(everything, deeper)
    assert not both(Selection.of(["*"], []), deeper)
    assert both(Selection.of(["ra/*"], []), deeper)
    assert not both(Selection.of(["ra/eu1"], []), deeper), "names of directories are no patterns"


PARTS = st.sampled_from(["**", "*", "?", "a", "b", "a*", "*b", "[ab]", "[!a]", "c?", "[[]"])
PATTERNS = st.lists(st.lists(PARTS, min_size=1, max_size=3).map("/".join), min_size=1, max_size=2)


@given(PATTERNS, st.one_of(st.just([]), PATTERNS), PATTERNS, st.one_of(st.just([]), PATTERNS))
def test_a_path_that_both_select_is_an_overlap(a: list[str], not_a: list[str], b: list[str], not_b: list[str]) -> None:
    include_a, exclude_a, include_b, exclude_b = (compile_globs(patterns) for patterns in (a, not_a, b, not_b))
    common = [
        path
        for path in PATHS
        if matches(include_a, path)
        and matches(include_b, path)
        and not matches(exclude_a, path)
        and not matches(exclude_b, path)
    ]
    answer = both(Selection.of(a, not_a), Selection.of(b, not_b))
    if common:
        assert answer, common[0]


def test_many_patterns_end() -> None:
    one = Selection.of([f"tenant-{number}/**" for number in range(64)], [])
    other = Selection.of([f"other-{number}/**" for number in range(64)], [])
    assert not both(one, other)
    assert not both(Selection.of(["*a" * 30 + "x"], []), Selection.of(["*b" * 30 + "y"], []))
