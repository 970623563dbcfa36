"""Merges, reverts, cherry-picks, hard resets: a branch gets another tree (docs/design/staging-areas.md#merges)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compaction.staging.errors import NoChangesError, StagingNameError, UncommittedChangesError, UnknownRefError
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import Committer, Draft, Proposal
from compaction.staging.flows.swapping import has_changes, seal, swapped
from compaction.staging.format.messages import CommitData
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.records import BranchRecord
from compaction.staging.tree.merging import MergeStrategy, merge

Trees = Callable[[CommitData], tuple[str, tuple[CommitData, ...]]]
"""Of the branch's commit: the new tree, and the parents of the new commit."""


class Merger:
    """Merges into branches of one repository that have no uncommitted changes.

    Every method raises UncommittedChangesError, NoChangesError, MergeConflictError, HookRefusedError, UnknownRefError,
    RepositoryReadOnlyError and TooManyTriesError; the branch is as it was then.
    """

    def __init__(self, area: Area, committer: Committer) -> None:
        self._area = area
        self._committer = committer

    def merge(self, source: str, into: str, draft: Draft, strategy: MergeStrategy = MergeStrategy.NONE) -> CommitData:
        """Merge the commit of a reference into a branch."""
        commits = self._area.commits
        other = self._area.references.commit(source)

        def trees(head: CommitData) -> tuple[str, tuple[CommitData, ...]]:
            base = commits.merge_base(head.id, other.id)
            if base.id == other.id:
                raise NoChangesError(f'branch "{into}" has all of {source} already')
            tree = self._merged(base.meta_range_id, other.meta_range_id, head.meta_range_id, strategy)
            return tree, (head, other)

        return self._replace(into, "merge", draft, trees)

    def revert(
        self, branch: str, reference: str, draft: Draft, *, parent: int = 0, allow_empty: bool = False
    ) -> CommitData:
        """Take back what a commit changed. `parent`: 1 or 2 for one that has several."""
        commit = self._area.references.commit(reference)
        before = self._parent(commit, parent)

        def trees(head: CommitData) -> tuple[str, tuple[CommitData, ...]]:
            return self._changed(commit.meta_range_id, before, head, allow_empty=allow_empty), (head,)

        return self._replace(branch, "revert", draft, trees)

    def cherry_pick(self, branch: str, reference: str, draft: Draft | None = None, *, parent: int = 0) -> CommitData:
        """Make the changes of another commit. Without a draft the new commit says what that one does."""
        commit = self._area.references.commit(reference)
        before = self._parent(commit, parent)
        said = draft or Draft(commit.committer, commit.message, commit.metadata)
        metadata = {**said.metadata, "cherry-pick-commit": commit.id}

        def trees(head: CommitData) -> tuple[str, tuple[CommitData, ...]]:
            return self._changed(before, commit.meta_range_id, head, allow_empty=False), (head,)

        return self._replace(branch, "cherry-pick", replace(said, metadata=metadata), trees)

    def hard_reset(self, branch: str, reference: str) -> CommitData:
        """Put a branch onto another commit. Branches with uncommitted changes are refused."""
        commit = self._area.references.commit(reference)
        self._swap(branch, "reset", lambda _: commit)
        return commit

    def replace_tree(self, branch: str, draft: Draft, tree: Callable[[str], str], doing: str) -> CommitData:
        """Commit what `tree` makes of the branch's own tree."""

        def trees(head: CommitData) -> tuple[str, tuple[CommitData, ...]]:
            return tree(head.meta_range_id), (head,)

        return self._replace(branch, doing, draft, trees)

    def _replace(self, name: str, doing: str, draft: Draft, trees: Trees) -> CommitData:
        def next_commit(head: CommitData) -> CommitData:
            tree, parents = trees(head)
            self._committer.ask(Proposal(name, draft, tree))
            return self._committer.add(draft, tree, *parents)

        return self._swap(name, doing, next_commit)

    def _swap(self, name: str, doing: str, next_commit: Callable[[CommitData], CommitData]) -> CommitData:
        """Replace the content of a branch. What is written meanwhile stays on top of it; a conditional write that has
        read the old content finds another commit when it reads the branch again.
        """
        self._area.repository.check_writable()
        if has_changes(self._area, self._area.branches.get(name)):
            raise UncommittedChangesError(name)
        seal(self._area, name)
        made: list[CommitData] = []

        def content(branch: Branch) -> BranchRecord:
            if has_changes(self._area, branch, sealed_only=True):
                raise UncommittedChangesError(name)
            made.append(next_commit(self._area.commits.get(branch.record.commit_id)))
            return branch.record.cleared(made[-1].id)

        swapped(self._area, name, doing, content)
        return made[-1]

    def _changed(self, base: str, source: str, head: CommitData, *, allow_empty: bool) -> str:
        try:
            return self._merged(base, source, head.meta_range_id, MergeStrategy.NONE)
        except NoChangesError:
            if allow_empty:
                return head.meta_range_id
            raise

    def _merged(self, base: str, source: str, destination: str, strategy: MergeStrategy) -> str:
        tree = merge(self._area.ranges, base, source, destination, strategy).metarange_id
        if tree == destination:
            raise NoChangesError("the branch holds these changes already")
        return tree

    def _parent(self, commit: CommitData, number: int) -> str:
        """The tree of the parent that changes are counted from; the empty tree before the first commit."""
        if number > len(commit.parents):
            raise UnknownRefError("parent", f"{commit.id[:16]}^{number}")
        if len(commit.parents) > 1 and not number:
            raise StagingNameError("commit to take changes of", commit.id[:16], "it has several parents: choose one")
        if not commit.parents:
            return ""
        return self._area.commits.get(commit.parents[max(0, number - 1)]).meta_range_id
