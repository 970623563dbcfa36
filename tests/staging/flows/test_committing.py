"""Commits: all sealed tokens on the compacted base or the commit's tree, and nothing else changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from compaction.staging.errors import (
    HookRefusedError,
    MissingRangeError,
    NoChangesError,
    PredicateFailedError,
    ProtectedBranchError,
    RepositoryReadOnlyError,
    TooManyTriesError,
    UncommittedChangesError,
)
from compaction.staging.flows.committing import Committer, Proposal
from compaction.staging.flows.writing import Writer
from compaction.staging.format.identity import commit_id
from compaction.staging.refs.branches import Branch, Branches, BranchRecord
from support.staging.staging_repos import DRAFT, StagingRepo, framed


def test_what_is_staged_becomes_the_tree(repo: StagingRepo) -> None:
    """C1, C9."""
    repo.put({"a": "1", "b": "1"}, sealed=[{"a": "3", "c": None}, {"a": "2", "c": "1", "d": "4"}], staging={"b": None})
    before = repo.area.branches.get("main").record
    commit = repo.committer.commit("main", DRAFT)
    record = repo.area.branches.get("main").record
    assert repo.shown(commit.id) == repo.shown() == {"a": "3", "d": "4"}
    assert (record.commit_id, record.sealed_tokens, record.compacted_base) == (commit.id, (), "")
    assert (commit.parents, commit.generation) == ((before.commit_id,), 2)
    assert commit.id == commit_id(commit)
    assert repo.uncommitted() == {}


def test_from_a_compacted_base(repo: StagingRepo) -> None:
    repo.put({"a": "1", "b": "1"}, base={"a": "2", "c": "3"}, sealed=[{"d": "4"}], staging={"c": None})
    repo.committer.commit("main", DRAFT)
    assert repo.shown("main@") == {"a": "2", "d": "4"}
    assert repo.area.branches.get("main").record.compacted_base == ""


def test_a_compacted_base_alone_is_a_change(repo: StagingRepo) -> None:
    repo.put({"a": "1"}, base={"a": "2"})
    repo.committer.commit("main", DRAFT)
    assert repo.shown("main@") == {"a": "2"}


def test_a_tree_that_is_given(repo: StagingRepo) -> None:
    """C2, C3, C4."""
    tree = repo.tree({"x": "1"})
    assert repo.committer.commit("main", DRAFT, tree=tree).meta_range_id == tree
    assert repo.shown() == {"x": "1"}
    other = repo.tree({"y": "1"})
    repo.set("z", "1")
    with pytest.raises(UncommittedChangesError):
        repo.committer.commit("main", DRAFT, tree=other)
    repo.put({"a": "1"}, base={"a": "2"})
    with pytest.raises(UncommittedChangesError):
        repo.committer.commit("main", DRAFT, tree=other)
    with pytest.raises(MissingRangeError):
        repo.committer.commit("main", DRAFT, tree="0" * 64)


def test_a_store_that_fails_leaves_the_branch(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5, C6: except that what was staged is sealed."""
    repo.put({"a": "1"}, staging={"b": "2"})
    before = repo.area.branches.get("main").record

    def fail(*args: object, **kwargs: object) -> None:
        raise MissingRangeError("tree", "range", "metarange")

    for owner, name in ((repo.area.ranges, "sink"), (repo.area.commits, "add")):
        with monkeypatch.context() as patched:
            patched.setattr(type(owner), name, fail)
            with pytest.raises(MissingRangeError):
                repo.committer.commit("main", DRAFT)
        record = repo.area.branches.get("main").record
        assert replace(record, staging_token="", sealed_tokens=()) == replace(
            before, staging_token="", sealed_tokens=()
        )
        assert record.sealed_tokens == (before.staging_token,)
        assert repo.shown() == {"a": "1", "b": "2"}


def test_a_protected_branch(repo: StagingRepo) -> None:
    """C8."""
    repo.set("a", "1")
    with pytest.raises(ProtectedBranchError):
        Committer(repo.area, protected=lambda name: name == "main").commit("main", DRAFT)


def test_nothing_to_commit(repo: StagingRepo) -> None:
    """C10: by content, so a record that was staged as it is is nothing."""
    repo.put({"a": "1"})
    with pytest.raises(NoChangesError):
        repo.committer.commit("main", DRAFT)
    repo.put({"a": "1"}, base={"a": "1#again"}, sealed=[{"b": None}], staging={"a": "1#copied"})
    with pytest.raises(NoChangesError):
        repo.committer.commit("main", DRAFT)


def test_commits_that_are_refused_pile_up_no_tokens(repo: StagingRepo) -> None:
    """The reference seals a token at each of them (docs/design/staging-areas.md#commits)."""
    repo.put({"a": "1"}, staging={"a": "1"})
    for _ in range(5):
        with pytest.raises(NoChangesError):
            repo.committer.commit("main", DRAFT)
    assert len(repo.area.branches.get("main").record.sealed_tokens) == 1


def test_the_swap_is_lost_again_and_again(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11."""
    repo.put({"a": "1"}, sealed=[{"b": "2"}])

    def lose(self: Branches, branch: Branch, record: BranchRecord) -> Branch:
        raise PredicateFailedError("partition", b"key")

    monkeypatch.setattr(Branches, "swap", lose)
    with pytest.raises(TooManyTriesError, match="during each of 10 tries to commit"):
        repo.committer.commit("main", DRAFT)
    assert max(repo.clock.pauses) <= 5


def test_the_swap_is_lost_once(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.put({"a": "1"}, sealed=[{"b": "2"}])
    swap = Branches.swap
    done: list[bool] = []

    def lose(self: Branches, branch: Branch, record: BranchRecord) -> Branch:
        if not done:
            done.append(True)
            found = self.get("main")
            swap(self, found, found.record.sealed(repo.token({"c": "3"})))
        return swap(self, branch, record)

    monkeypatch.setattr(Branches, "swap", lose)
    repo.committer.commit("main", DRAFT)
    assert repo.shown() == {"a": "1", "b": "2", "c": "3"}


def test_empty_commits(repo: StagingRepo) -> None:
    """C12, C13."""
    first = repo.committer.commit("main", DRAFT, allow_empty=True)
    drafts = [replace(DRAFT, message=f"empty {n}") for n in range(2)]
    repo.clock.sleep = lambda seconds: None  # type: ignore[method-assign]  # two threads share it
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda draft: repo.committer.commit("main", draft, allow_empty=True), drafts))
    log = [commit.id for commit in repo.area.commits.log(repo.area.branches.get("main").record.commit_id)]
    assert {first.id, *(item.id for item in both)} < set(log)
    assert len(log) == 4


class TestHooks:
    def test_a_hook_sees_the_tree_and_refuses(self, repo: StagingRepo) -> None:
        """C14 to C17, and growth: a commit that is refused again finds the same tokens."""
        seen: list[Proposal] = []

        def refuse(proposal: Proposal) -> None:
            seen.append(proposal)
            raise HookRefusedError(proposal.branch, "no tickets in the message")

        repo.set("a", "1")
        committer = Committer(repo.area, hooks=(refuse,))
        for _ in range(3):
            with pytest.raises(HookRefusedError, match="a hook refused the commit: no tickets"):
                committer.commit("main", DRAFT)
        assert len(repo.area.branches.get("main").record.sealed_tokens) == 1
        assert repo.shown() == {"a": "1"}
        assert [batch.pairs() for batch in repo.area.ranges.records(seen[0].tree)] == [[(b"a", framed("1"))]]
        assert repo.shown("main@") == {}

    def test_a_hook_agrees(self, repo: StagingRepo) -> None:
        repo.set("a", "1")
        seen: list[str] = []
        Committer(repo.area, hooks=(lambda proposal: seen.append(proposal.branch),)).commit("main", DRAFT)
        assert seen == ["main"]

    def test_a_repository_that_is_read_only(self, repo: StagingRepo) -> None:
        repo.set("a", "1")
        area = repo.area
        locked = replace(area, repository=replace(area.repository, read_only=True))
        for act in (
            lambda: Committer(locked).commit("main", DRAFT),
            lambda: Writer(locked).set("main", b"a", framed("2")),
            lambda: Writer(locked).delete("main", b"a"),
        ):
            with pytest.raises(RepositoryReadOnlyError, match="nothing was changed"):
                act()
