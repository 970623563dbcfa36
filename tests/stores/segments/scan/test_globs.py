"""Patterns of log directories: what they match, and that no pattern takes long."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import GlobSyntaxError
from compaction.segments.scan.find import compile_globs, matches


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("**", ["", "a", "a/b"], []),
        ("*", ["a", "log-1"], ["", "a/b"]),
        ("a/**", ["a", "a/b", "a/b/c"], ["", "b", "ab"]),
        ("**/c", ["c", "a/c", "a/b/c"], ["", "a/cc"]),
        ("a/*/c", ["a/b/c"], ["a/c", "a/b/d/c"]),
        ("log-?[0-3]", ["log-x2"], ["log-22x", "log-x4"]),
        ("**/x/**/y", ["x/y", "a/x/b/c/y"], ["x", "xy"]),
        ("a.b+", ["a.b+"], ["axb", "a.bb"]),
        ("**/archive/**", ["archive", "x/archive", "x/archive/y/z"], ["", "x", "archives"]),
        ("a/**/b/**/c", ["a/b/c", "a/x/b/y/z/c", "a/b/b/c"], ["a/c", "a/b", "b/c"]),
        ("**/**/x", ["x", "a/x"], ["a", ""]),
        ("log-[0-9]", ["log-1"], ["log-a", "log-"]),
        ("log-[!0-9]?", ["log-ab"], ["log-1b", "log-a"]),
        ("a*b*c", ["abc", "axbxc", "abcbc"], ["ab", "acb", "a/bc"]),
        ("a[*]b", ["a*b"], ["axb"]),
        ("x[[]y]", ["x[y]"], ["xy", "x[y"]),
    ],
)
def test_what_a_pattern_matches(pattern: str, inside: list[str], outside: list[str]) -> None:
    globs = compile_globs([pattern])
    assert [path for path in inside if not matches(globs, path)] == []
    assert [path for path in outside if matches(globs, path)] == []


@pytest.mark.parametrize("pattern", ["", "/a", "a//b", "../a", "a/./b", "***", "a/***/b", "[", "log-[0-9", "[a/b]"])
def test_impossible_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(GlobSyntaxError):
        compile_globs([pattern])


def slow_match(pattern: list[str], names: list[str]) -> bool:
    """The definition, with all its tries."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(slow_match(pattern[1:], names[start:]) for start in range(len(names) + 1))
    return bool(names) and slow_star(pattern[0], names[0]) and slow_match(pattern[1:], names[1:])


def slow_star(part: str, name: str) -> bool:
    if not part:
        return not name
    if part[0] == "*":
        return any(slow_star(part[1:], name[start:]) for start in range(len(name) + 1))
    return bool(name) and part[0] in ("?", name[0]) and slow_star(part[1:], name[1:])


NAMES = st.text("ab", min_size=1, max_size=4)
PARTS = st.just("**") | st.text("ab*?", min_size=1, max_size=5).filter(lambda part: "**" not in part)


@given(st.lists(PARTS, min_size=1, max_size=5), st.lists(NAMES, max_size=6))
def test_greedy_matching_finds_what_trying_everything_finds(pattern: list[str], names: list[str]) -> None:
    assert matches(compile_globs(["/".join(pattern)]), "/".join(names)) == slow_match(pattern, names)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("*a" * 40 + "b", "a" * 250), ("**/a/" * 40 + "b", "a/" * 200 + "c"), ("**/*a*a*a*a*a*b/" * 5 + "x", "a" * 250)],
)
def test_no_pattern_takes_exponential_time(pattern: str, path: str) -> None:
    """Counted in calls of Python code, of which each step of the matching is a handful; never in seconds."""
    globs, calls = compile_globs([pattern]), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        found = matches(globs, path)
    finally:
        sys.setprofile(None)
    assert not found
    assert calls < 100_000


def test_an_error_quotes_a_long_pattern_in_part() -> None:
    with pytest.raises(GlobSyntaxError) as refusal:
        compile_globs(["***" + "\x1b" * 10_000])
    assert len(str(refusal.value)) < 500
    assert "\x1b" not in str(refusal.value)
