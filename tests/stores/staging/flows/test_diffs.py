"""Uncommitted changes, and what differs between references: by identity, with a compacted base or without one."""

from __future__ import annotations

import pytest

from support.stores.staging_repos import DRAFT, Content, StagingRepo, differences, overlaid

CASES: list[tuple[str, Content, Content | None, list[Content], Content]] = [
    ("nothing staged", {"a": "1"}, None, [], {}),
    ("added", {"a": "1"}, None, [], {"b": "2"}),
    ("changed", {"a": "1"}, None, [], {"a": "2"}),
    ("removed", {"a": "1"}, None, [], {"a": None}),
    ("staged with the same identity", {"a": "1"}, None, [], {"a": "1#copy"}),
    ("deleted, then added as it was", {"a": "1"}, None, [{"a": None}], {"a": "1"}),
    ("a tombstone of nothing", {"a": "1"}, None, [], {"b": None}),
    ("the newest value is that of the commit", {"a": "1"}, None, [{"a": "2"}, {"a": "3"}], {"a": "1"}),
    ("S, T1, T2", {"a": "0", "b": "0", "c": "0"}, None, [{"a": "1", "b": "1"}, {"b": "2", "c": "2"}], {"a": "3"}),
    ("removed in B", {"a": "1", "b": "2"}, {"b": "2"}, [], {}),
    ("changed in B", {"a": "1"}, {"a": "2"}, [], {}),
    ("removed in B, staged again differently", {"a": "1"}, {}, [], {"a": "2"}),
    ("changed in B and staged", {"a": "1"}, {"a": "2"}, [], {"a": "3"}),
    ("staged alone, over B", {"a": "1"}, {"a": "1"}, [], {"b": "2"}),
    ("in B, deleted, in C", {"a": "1"}, {"a": "2"}, [], {"a": None}),
    ("changed in B, staged as in C", {"a": "1"}, {"a": "2"}, [], {"a": "1"}),
    ("added in B, deleted", {"a": "1"}, {"a": "1", "b": "2"}, [], {"b": None}),
    ("removed in B, staged as in C", {"a": "1", "b": "2"}, {"b": "2"}, [{"a": "1"}], {}),
    ("B is C", {"a": "1"}, {"a": "1"}, [], {}),
    ("everything removed by B", {"a": "1", "b": "2"}, {}, [], {}),
]


@pytest.mark.parametrize(("name", "head", "base", "sealed", "staging"), CASES, ids=[item[0] for item in CASES])
def test_uncommitted_changes(
    repo: StagingRepo, name: str, head: Content, base: Content | None, sealed: list[Content], staging: Content
) -> None:
    """D1 to D6, D9 to D15. A key of a token hides what the base did to it, also when that leaves no difference."""
    repo.put(head, base=base, sealed=sealed, staging=staging)
    shown = overlaid(staging, *sealed, head if base is None else base)
    assert repo.uncommitted() == differences(head, shown)


@pytest.mark.parametrize("compacted", [False, True])
def test_against_an_older_commit(repo: StagingRepo, compacted: bool) -> None:
    """D7, D8."""
    old = {"a": "1", "b": "2", "c": "3", "d": "4"}
    repo.put(old)
    first = repo.area.branches.get("main").record.commit_id
    head = {"a": "1", "b": "20", "c": "3", "e": "5"}
    base = {"a": "10", "b": "20", "e": "5"} if compacted else None
    staging: Content = {"c": None, "e": "50", "f": "6"} if not compacted else {"e": "50", "f": "6"}
    repo.put(head, base=base, staging=staging)
    page = repo.reader.diff(first, "main")
    shown = overlaid(staging, head if base is None else base)
    assert {entry.key.decode(): entry.kind.name.lower() for entry in page.entries} == differences(old, shown)
    assert {
        entry.key.decode(): entry.kind.name.lower() for entry in repo.reader.diff(first, "main@").entries
    } == differences(old, head)


def test_pages_and_prefixes(repo: StagingRepo) -> None:
    """D23."""
    repo.put({f"a/{n}": "1" for n in range(5)}, base={}, staging={"b/1": "2", "a/9": "3"})
    page = repo.reader.uncommitted("main", amount=2)
    assert ([entry.key for entry in page.entries], page.more) == ([b"a/0", b"a/1"], True)
    rest = repo.reader.uncommitted("main", after=b"a/1")
    assert [entry.key for entry in rest.entries] == [b"a/2", b"a/3", b"a/4", b"a/9", b"b/1"]
    assert [entry.key for entry in repo.reader.uncommitted("main", prefix=b"b/").entries] == [b"b/1"]


def test_nothing_is_uncommitted_after_a_commit(repo: StagingRepo) -> None:
    repo.put({"a": "1"}, base={"a": "2"}, sealed=[{"b": "1"}], staging={"c": "1"})
    repo.committer.commit("main", DRAFT)
    assert repo.uncommitted() == {}
    assert repo.shown() == {"a": "2", "b": "1", "c": "1"}
