"""Reading a branch: the staging token, the sealed ones from the newest on, the compacted base or the commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from compaction.staging.errors import TooManyTriesError, UnknownRefError
from compaction.staging.flows.reading import Reader, RecordView
from compaction.storage.errors import DatabaseUnavailableError
from support.staging.staging_repos import DRAFT, Content, StagingRepo, differences, framed, overlaid
from support.timing import at_depth

K = "k"


@dataclass(frozen=True)
class State:
    """The key `k` in each layer; nothing: it is not there. `X`: a tombstone."""

    head: str = ""
    base: str | None = None
    sealed: tuple[str, ...] = ()
    staging: str = ""
    expected: str | None = field(kw_only=True)

    def put(self, repo: StagingRepo) -> None:
        base = None if self.base is None else _content(self.base)
        repo.put(
            _content(self.head),
            base=base,
            sealed=[_content(item) for item in self.sealed],
            staging=_content(self.staging),
        )


def _content(text: str) -> dict[str, str | None]:
    return {"other": "same"} | ({K: None if text == "X" else text} if text else {})


@pytest.mark.parametrize(
    "state",
    [
        State("", staging="s", expected="s"),
        State("c", staging="s", expected="s"),
        State("c", expected="c"),
        State("c", staging="X", expected=None),
        State("", base="b", expected="b"),
        State("c", base="b", expected="b"),
        State("c", base="b", staging="s", expected="s"),
        State("c", base="b", staging="X", expected=None),
        State("c", base="", staging="s", expected="s"),
        State("c", sealed=("t1", "t2"), staging="s", expected="s"),
        State("c", sealed=("t1", "t2"), expected="t1"),
        State("c", sealed=("X", "t2"), expected=None),
        State("c", sealed=("X",), staging="s", expected="s"),
        State("c", base="", expected=None),
        State("c", base="", sealed=("", "X"), expected=None),
        State("", expected=None),
    ],
)
def test_the_newest_layer_that_has_the_key_decides(repo: StagingRepo, state: State) -> None:
    """G4 to G7, G9 to G17 of the scenarios: a compacted base is all there is below the tokens."""
    state.put(repo)
    assert repo.get(K) == state.expected
    assert repo.shown().get(K) == state.expected


@pytest.mark.parametrize(
    "state",
    [
        State("", staging="s", expected="s"),
        State("c", staging="s", expected="s"),
        State("c", staging="c#copied", expected=None),
        State("c", base="b", expected="b"),
        State("", base="b", expected="b"),
        State("c", base="c#copied", expected=None),
        State("c", expected=None),
        State("c", staging="X", expected=None),
    ],
)
def test_what_is_staged_alone_differs_from_the_commit_by_its_identity(repo: StagingRepo, state: State) -> None:
    """G18 to G23."""
    state.put(repo)
    assert repo.get(K, stage_only=True) == state.expected


def test_a_commit_shows_what_it_holds_whatever_is_staged(repo: StagingRepo) -> None:
    """G1, G2."""
    repo.put({"a": "1"}, base={"a": "2"}, staging={"a": "3", "b": "4"})
    commit = repo.area.branches.get("main").record.commit_id
    for reference in (commit, commit[:12], "main@", "main~0"):
        assert (repo.get("a", reference), repo.get("b", reference)) == ("1", None)
        assert repo.shown(reference) == {"a": "1"}
    assert repo.shown("main$") == {"a": "3", "b": "4"}


def test_a_failing_store_is_no_missing_record(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3, G8."""
    repo.put({"a": "1"})

    def fail(*args: Any, **kwargs: Any) -> None:
        raise DatabaseUnavailableError("kv", "it is away")

    with monkeypatch.context() as patched:
        patched.setattr(type(repo.area.tokens), "get", fail)
        with pytest.raises(DatabaseUnavailableError):
            repo.get("a")
    monkeypatch.setattr(type(repo.area.ranges), "get", fail)
    with pytest.raises(DatabaseUnavailableError):
        repo.get("a")


LAYERS: list[tuple[str, Content, Content | None, list[Content], Content]] = [
    ("C + S disjoint", {"a": "1", "c": "3"}, None, [], {"b": "2", "d": "4"}),
    ("B + S disjoint", {"z": "9"}, {"a": "1", "c": "3"}, [], {"b": "2", "d": "4"}),
    ("the same key in S and C", {"a": "1", "b": "2"}, None, [], {"b": "3"}),
    ("the same key in S and B", {"b": "1"}, {"a": "1", "b": "2"}, [], {"b": "3"}),
    ("all empty", {}, None, [{}, {}], {}),
    ("interleaved", {"a": "1", "d": "1"}, None, [{"b": "2", "e": "2"}, {"c": "3", "f": "3"}], {"aa": "4"}),
    ("a tombstone of nothing", {"a": "1"}, None, [], {"b": None, "c": None}),
    (
        "a tombstone over each layer",
        {"a": "1"},
        {"b": "1"},
        [{"c": None}, {"c": "3", "d": "4"}],
        {"b": None, "d": None},
    ),
    ("all deleted", {f"k{n}": "1" for n in range(9)}, None, [], {f"k{n}": None for n in range(9)}),
]


@pytest.mark.parametrize(("name", "head", "base", "sealed", "staging"), LAYERS, ids=[layer[0] for layer in LAYERS])
def test_a_listing_shows_the_layers_as_one(
    repo: StagingRepo, name: str, head: Content, base: Content | None, sealed: list[Content], staging: Content
) -> None:
    """L1 to L12."""
    repo.put(head, base=base, sealed=sealed, staging=staging)
    expected = overlaid(staging, *sealed, head if base is None else base)
    assert repo.shown() == expected
    for key in {*head, *(base or {}), *staging}:
        assert repo.get(key) == expected.get(key)


TREE = {"a/1": "1", "a/2": "2", "a/b/3": "3", "b": "4", "c/1": "5", "c/2": "6", "d/": "7", "e": "8"}


class TestListing:
    def test_below_a_prefix(self, repo: StagingRepo) -> None:
        """L5, L6."""
        repo.put(TREE, staging={"a/9": "9", "ab": "0"})
        assert repo.names(prefix="a/") == ["a/1", "a/2", "a/9", "a/b/3"]
        repo.put({}, base=TREE, staging={"a/9": "9"})
        assert repo.names(prefix="a/b") == ["a/b/3"]

    def test_common_prefixes_are_listed_once(self, repo: StagingRepo) -> None:
        repo.put(TREE, staging={"a/9": "9", "f/1": "1"})
        assert repo.names(delimiter="/") == ["a/", "b", "c/", "d/", "e", "f/"]
        assert repo.names(prefix="a/", delimiter="/") == ["a/1", "a/2", "a/9", "a/b/"]
        assert repo.names(prefix="a", delimiter="/") == ["a/"]

    def test_a_prefix_of_tombstones_is_not_listed(self, repo: StagingRepo) -> None:
        """L13."""
        repo.put(TREE, sealed=[{"c/1": None}], staging={"c/2": None, "d/": None})
        assert repo.names(delimiter="/") == ["a/", "b", "e"]
        assert repo.names(prefix="c/") == []

    @pytest.mark.parametrize("amount", [1, 2, 3])
    def test_pages_show_everything_once(self, repo: StagingRepo, amount: int) -> None:
        repo.put(TREE, staging={"a/9": "9", "b": None})
        found: list[str] = []
        while page := repo.names(after=found[-1] if found else "", delimiter="/", amount=amount):
            found += page
        assert found == ["a/", "c/", "d/", "e"]

    def test_a_page_says_whether_there_is_more(self, repo: StagingRepo) -> None:
        repo.put({"a": "1", "b": "2"})
        assert [repo.reader.list("main", amount=amount).more for amount in (1, 2, 3)] == [True, False, False]

    def test_after_a_key_inside_and_outside_of_a_prefix(self, repo: StagingRepo) -> None:
        repo.put(TREE)
        assert repo.names(after="a/2") == ["a/b/3", "b", "c/1", "c/2", "d/", "e"]
        assert repo.names(prefix="c/", after="a") == ["c/1", "c/2"]
        assert repo.names(prefix="a/", after="z") == []

    def test_keys_are_bytes(self, repo: StagingRepo) -> None:
        keys = [b"\x00", b"a\x00", b"a\xff", b"\xff", b"\xff\xff", b"\xff\xff\xffx"]
        for key in keys:
            repo.writer.set("main", key, framed("v"))
        assert [entry.key for entry in repo.reader.list("main").entries] == keys
        assert [entry.key for entry in repo.reader.list("main", prefix=b"\xff").entries] == keys[3:]
        assert [entry.key for entry in repo.reader.list("main", prefix=b"\xff\xff").entries] == keys[4:]

    def test_many_keys_of_one_common_prefix(self, repo: StagingRepo) -> None:
        """What lies below a common prefix is passed over, in the streams that are open or in new ones."""
        count = at_depth(short=1000, deep=3000)
        many = {f"a/{n:05}": "x" for n in range(count)} | {"b": "1"}
        repo.put(many, staging={f"a/{n:05}": None for n in range(0, count, 2)})
        assert repo.names(delimiter="/") == ["a/", "b"]


class TestAgainstOthers:
    def test_a_reader_whose_tokens_were_removed_starts_over(
        self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rows of a token are dropped between the two reads: a listing without them is never given out."""
        repo.put({"a": "1"}, sealed=[{"b": "2"}])
        token = repo.area.branches.get("main").record.sealed_tokens[0]
        original = Reader.shown

        def commit_first(self: Reader, view: RecordView, key: bytes) -> bytes | None:
            if token in view.tokens:
                repo.set("c", "3")
                repo.committer.commit("main", DRAFT)
                repo.area.tokens.drop(token)
            return original(self, view, key)

        monkeypatch.setattr(Reader, "shown", commit_first)
        assert repo.get("b") == "2"

    def test_a_reader_is_not_kept_waiting_for_ever(self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Reader.shown

        def swap_first(self: Reader, view: RecordView, key: bytes) -> bytes | None:
            repo.resetter.reset("main")
            return original(self, view, key)

        monkeypatch.setattr(Reader, "shown", swap_first)
        with pytest.raises(TooManyTriesError):
            repo.get("a")

    def test_sealing_is_no_reason_to_start_over(self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Reader.shown
        calls = []

        def seal_first(self: Reader, view: RecordView, key: bytes) -> bytes | None:
            calls.append(view)
            branch = repo.area.branches.get("main")
            repo.area.branches.swap(branch, branch.record.sealed("a-fresh-token"))
            return original(self, view, key)

        monkeypatch.setattr(Reader, "shown", seal_first)
        assert (repo.get("a"), len(calls)) == (None, 1)

    def test_a_deleted_branch(self, repo: StagingRepo) -> None:
        repo.brancher.create("other", "main")
        repo.brancher.delete("other")
        with pytest.raises(UnknownRefError, match='"other" not found'):
            repo.get("a", "other")


# Uncommitted changes, and what differs between references: by identity, with a compacted base or without one.

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
