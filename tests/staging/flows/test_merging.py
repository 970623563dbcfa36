"""Merges, reverts, cherry-picks, hard resets, imports: they replace the content of a branch that is clean."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compaction.staging.errors import (
    MergeConflictError,
    NoChangesError,
    PredicateFailedError,
    StagingNameError,
    TooManyTriesError,
    UncommittedChangesError,
    UnknownRefError,
)
from compaction.staging.flows.committing import CommitDraft, disjoint
from compaction.staging.format.messages import CommitData
from compaction.staging.refs.branches import Branch, Branches, BranchRecord
from compaction.staging.tree.diffing import MergeStrategy
from support.staging.staging_repos import DRAFT, Content, StagingRepo, changes_of


def commit(repo: StagingRepo, branch: str, changes: Content) -> CommitData:
    for key, text in changes.items():
        if text is None:
            repo.delete(key, branch)
        else:
            repo.set(key, text, branch)
    return repo.committer.commit(branch, DRAFT)


@pytest.fixture
def forked(repo: StagingRepo) -> StagingRepo:
    """`main` and `other` come from one commit, and both have a commit of their own."""
    commit(repo, "main", {"a": "1", "b": "1", "c": "1"})
    repo.brancher.create("other", "main")
    commit(repo, "main", {"a": "2"})
    commit(repo, "other", {"b": "2", "c": None, "d": "4"})
    return repo


def dirty_tokens(repo: StagingRepo) -> None:
    repo.set("x", "1")


def dirty_base(repo: StagingRepo) -> None:
    branch = repo.area.branches.get("main")
    tree = repo.tree({"x": "1"})
    repo.area.branches.swap(
        branch, BranchRecord(id="main", commit_id=branch.record.commit_id, staging_token="fresh", compacted_base=tree)
    )


REPLACING: list[tuple[str, Callable[[StagingRepo], object]]] = [
    ("merge", lambda repo: repo.merger.merge("other", "main", DRAFT)),
    ("revert", lambda repo: repo.merger.revert("main", "main@", DRAFT)),
    ("cherry-pick", lambda repo: repo.merger.cherry_pick("main", "other")),
    ("reset", lambda repo: repo.merger.hard_reset("main", "main~1")),
    ("import", lambda repo: repo.importer.import_records("main", lambda: [changes_of({"z": "9"})], DRAFT)),
]


@pytest.mark.parametrize(("doing", "act"), REPLACING, ids=[item[0] for item in REPLACING])
class TestReplacing:
    @pytest.mark.parametrize("dirty", [dirty_tokens, dirty_base])
    def test_a_branch_with_changes_is_refused(
        self,
        forked: StagingRepo,
        doing: str,
        act: Callable[[StagingRepo], object],
        dirty: Callable[[StagingRepo], None],
    ) -> None:
        """M3, R3, R4, U1."""
        dirty(forked)
        before, record = forked.shown(), forked.area.branches.get("main").record
        with pytest.raises(UncommittedChangesError, match="commit or reset them first"):
            act(forked)
        assert forked.shown() == before
        assert forked.area.branches.get("main").record == record, "not even sealed: refusals pile up no tokens"

    def test_it_becomes_dirty_while_tokens_are_switched(
        self, forked: StagingRepo, doing: str, act: Callable[[StagingRepo], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """M2, R5."""
        swap = Branches.swap
        done: list[bool] = []
        forked.set("a", "2#as it is")  # so that there is something to seal, and no change

        def write_first(self: Branches, branch: Branch, record: BranchRecord) -> Branch:
            if not done:
                done.append(True)
                forked.set("x", "1")
            return swap(self, branch, record)

        monkeypatch.setattr(Branches, "swap", write_first)
        with pytest.raises(UncommittedChangesError):
            act(forked)
        assert forked.get("x") == "1"

    def test_a_lost_swap_is_tried_again(
        self, forked: StagingRepo, doing: str, act: Callable[[StagingRepo], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """M4."""
        swap = Branches.swap
        lost: list[bool] = []

        def lose(self: Branches, branch: Branch, record: BranchRecord) -> Branch:
            if len(lost) < 2:
                lost.append(True)
                raise PredicateFailedError("partition", b"key")
            return swap(self, branch, record)

        monkeypatch.setattr(Branches, "swap", lose)
        act(forked)
        assert forked.uncommitted() == {}

    def test_all_swaps_are_lost(
        self, forked: StagingRepo, doing: str, act: Callable[[StagingRepo], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """M5."""
        before = forked.shown()

        def lose(self: Branches, branch: Branch, record: BranchRecord) -> Branch:
            raise PredicateFailedError("partition", b"key")

        with monkeypatch.context() as patched:
            patched.setattr(Branches, "swap", lose)
            with pytest.raises(TooManyTriesError, match=doing):
                act(forked)
        assert forked.shown() == before

    def test_what_is_written_meanwhile_stays(
        self, forked: StagingRepo, doing: str, act: Callable[[StagingRepo], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap = Branches.swap
        done: list[bool] = []

        def write_first(self: Branches, branch: Branch, record: BranchRecord) -> Branch:
            if record.commit_id != branch.record.commit_id and not done:
                done.append(True)
                forked.set("late", "1")
            return swap(self, branch, record)

        monkeypatch.setattr(Branches, "swap", write_first)
        act(forked)
        assert (done, forked.get("late")) == ([True], "1")
        assert forked.uncommitted() == {"late": "added"}


class TestMerge:
    def test_both_sides(self, forked: StagingRepo) -> None:
        """M1."""
        merged = forked.merger.merge("other", "main", DRAFT)
        assert forked.shown() == {"a": "2", "b": "2", "d": "4"}
        assert len(merged.parents) == 2
        assert forked.merger._parent(merged, 1) != forked.merger._parent(merged, 2)
        with pytest.raises(NoChangesError):
            forked.merger.merge("other", "main", DRAFT)
        with pytest.raises(UnknownRefError):
            forked.merger.merge("nowhere", "main", DRAFT)

    @pytest.mark.parametrize(("strategy", "winner"), [(MergeStrategy.SOURCE_WINS, "4"), (MergeStrategy.DEST_WINS, "3")])
    def test_conflicts(self, forked: StagingRepo, strategy: MergeStrategy, winner: str) -> None:
        commit(forked, "main", {"k": "3"})
        commit(forked, "other", {"k": "4"})
        with pytest.raises(MergeConflictError, match="'k'"):
            forked.merger.merge("other", "main", DRAFT)
        forked.merger.merge("other", "main", DRAFT, strategy)
        assert forked.get("k") == winner

    def test_the_base_is_the_last_merge(self, forked: StagingRepo) -> None:
        forked.merger.merge("other", "main", DRAFT)
        commit(forked, "other", {"e": "5"})
        commit(forked, "main", {"d": None})
        forked.merger.merge("other", "main", DRAFT)
        assert forked.shown() == {"a": "2", "b": "2", "e": "5"}


class TestRevert:
    def test_takes_back_one_commit(self, repo: StagingRepo) -> None:
        """R1, R2, R6."""
        commit(repo, "main", {"a": "1", "b": "1"})
        commit(repo, "main", {"a": "2", "c": "3"})
        commit(repo, "main", {"b": None})
        repo.merger.revert("main", "main~1", DRAFT)
        assert repo.shown() == {"a": "1"}
        with pytest.raises(UnknownRefError):
            repo.merger.revert("main", "0" * 64, DRAFT)
        with pytest.raises(NoChangesError):
            repo.merger.revert("main", "main~2", DRAFT)
        assert repo.merger.revert("main", "main~2", CommitDraft("me", "again"), allow_empty=True).message == "again"
        assert repo.shown() == {"a": "1"}

    def test_a_merge_has_two_parents(self, forked: StagingRepo) -> None:
        forked.merger.merge("other", "main", DRAFT)
        with pytest.raises(StagingNameError, match="it has several parents: choose one"):
            forked.merger.revert("main", "main@", DRAFT)
        with pytest.raises(UnknownRefError):
            forked.merger.revert("main", "main@", DRAFT, parent=3)
        forked.merger.revert("main", "main@", DRAFT, parent=1)
        assert forked.shown() == {"a": "2", "b": "1", "c": "1"}


class TestCherryPick:
    @pytest.mark.parametrize("draft", [None, CommitDraft("me", "picked", {"ticket": "7"})])
    def test_makes_the_same_changes(self, forked: StagingRepo, draft: CommitDraft | None) -> None:
        """R10 to R13."""
        origin = forked.area.branches.get("other").record.commit_id
        picked = forked.merger.cherry_pick("main", "other", draft)
        assert forked.shown() == {"a": "2", "b": "2", "d": "4"}
        assert picked.metadata["cherry-pick-commit"] == origin
        assert picked.message == (draft.message if draft else "a commit")
        assert picked.metadata.get("ticket") == ("7" if draft else None)


class TestImport:
    def test_in_place_of_what_was_below_the_prefixes(self, repo: StagingRepo) -> None:
        """I1, I2."""
        commit(repo, "main", {"a/1": "1", "a/2": "2", "ab": "3", "b/1": "4"})
        records = changes_of({"a/2": "2", "a/3": "30", "x": "5"})
        done = repo.importer.import_records(
            "main", lambda: [records], CommitDraft("me", "import", {"from": "s3"}), prefixes=[b"a/", b"a/x"]
        )
        assert repo.shown() == {"a/2": "2", "a/3": "30", "ab": "3", "b/1": "4", "x": "5"}
        assert done.metadata == {"from": "s3"}

    def test_prefixes_inside_of_others(self) -> None:
        assert disjoint([b"b", b"a/", b"a/x", b"b", b"a0"]) == [b"a/", b"a0", b"b"]


def test_a_hard_reset_shows_an_older_commit(repo: StagingRepo) -> None:
    first = commit(repo, "main", {"a": "1"})
    commit(repo, "main", {"a": "2", "b": "2"})
    assert repo.merger.hard_reset("main", "main~1").id == first.id
    assert (repo.shown(), repo.uncommitted()) == ({"a": "1"}, {})
