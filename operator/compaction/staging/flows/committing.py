"""Commits, merges and imports: a branch gets another tree (docs/design/staging-areas.md#commits)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from compaction.staging.errors import (
    NoChangesError,
    ProtectedBranchError,
    StagingNameError,
    UncommittedChangesError,
    UnknownRefError,
)
from compaction.staging.flows.area import Area, pin
from compaction.staging.flows.branching import has_changes, seal, swapped
from compaction.staging.flows.reading import view_of
from compaction.staging.format.columns import BINARY, TOMBSTONE, RecordColumns
from compaction.staging.format.messages import CommitData
from compaction.staging.refs.branches import Branch, BranchRecord
from compaction.staging.staged.rows import after_prefix, layered
from compaction.staging.tree.applying import apply
from compaction.staging.tree.diffing import MergeStrategy, diff, merge

# Commits: what the sealed tokens and the compacted base hold becomes a tree (docs/design/staging-areas.md#commits).


@dataclass(frozen=True, slots=True)
class CommitDraft:
    """The statements of a commit that does not exist yet."""

    committer: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The commit that a hook is asked about: `tree` is the metarange that the branch would have."""

    branch: str
    draft: CommitDraft
    tree: str


Hook = Callable[[Proposal], None]
"""Raises HookRefusedError to refuse."""


class Committer:
    """Commits branches of one repository. `protected`: whether a branch takes merges only."""

    def __init__(
        self, area: Area, *, hooks: tuple[Hook, ...] = (), protected: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._area = area
        self._hooks = hooks
        self._protected = protected

    def commit(
        self, name: str, draft: CommitDraft, *, allow_empty: bool = False, tree: str | None = None
    ) -> CommitData:
        """Commit what is staged; what is written meanwhile stays staged.

        `tree`: the metarange to commit instead, on a branch without uncommitted changes; its objects must be there.

        Raises:
            NoChangesError: nothing to commit. The branch is as it was.
            HookRefusedError, ProtectedBranchError, RepositoryReadOnlyError, UnknownRefError, TooManyTriesError
            UncommittedChangesError: there are some, and a tree was given.
            CorruptRangeError, CorruptMessageError: the branch is as it was.
        """
        self._area.repository.check_writable()
        if self._protected(name):
            raise ProtectedBranchError(name, "committing")
        if tree is None:
            return self._commit(name, draft, allow_empty, None)
        with pin(self._area, tree):
            self._area.ranges.check(tree)
            return self._commit(name, draft, allow_empty, tree)

    def _commit(self, name: str, draft: CommitDraft, allow_empty: bool, tree: str | None) -> CommitData:
        seal(self._area, name)
        made: list[CommitData] = []

        def committed(branch: Branch) -> BranchRecord:
            head = self._area.commits.get(branch.record.commit_id)
            if tree is not None and has_changes(self._area, branch):
                raise UncommittedChangesError(name)
            result = self._tree(branch) if tree is None else tree
            before, ranges = head.meta_range_id, self._area.ranges
            # Trees of other cuts may hold the same.
            if not allow_empty and (before == result or next(diff(ranges, before, result), None) is None):
                raise NoChangesError(f'branch "{name}" has no changes to commit')
            self.ask(Proposal(name, draft, result))
            made.append(self.add(draft, result, head))
            return branch.record.cleared(made[-1].id)

        swapped(self._area, name, "commit", committed)
        return made[-1]

    def ask(self, proposal: Proposal) -> None:
        """Ask the hooks. Raises HookRefusedError."""
        for hook in self._hooks:
            hook(proposal)

    def add(self, draft: CommitDraft, tree: str, *parents: CommitData) -> CommitData:
        """Write a commit that no branch has yet."""
        return self._area.commits.add(
            metarange_id=tree,
            parents=parents,
            committer=draft.committer,
            message=draft.message,
            metadata=draft.metadata,
            now=self._area.clock(),
        )

    def _tree(self, branch: Branch) -> str:
        """The sealed changes on the compacted base, or on the tree of the commit."""
        view = view_of(self._area, branch, sealed_only=True)
        changes = layered([self._area.tokens.changes(token) for token in view.tokens])
        return apply(self._area.ranges, view.metarange_id, changes, allow_empty=True).metarange_id


# Merges, reverts, cherry-picks, hard resets: a branch gets another tree (docs/design/staging-areas.md#merges).

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

    def merge(
        self, source: str, into: str, draft: CommitDraft, strategy: MergeStrategy = MergeStrategy.NONE
    ) -> CommitData:
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
        self, branch: str, reference: str, draft: CommitDraft, *, parent: int = 0, allow_empty: bool = False
    ) -> CommitData:
        """Take back what a commit changed. `parent`: 1 or 2 for one that has several."""
        commit = self._area.references.commit(reference)
        before = self._parent(commit, parent)

        def trees(head: CommitData) -> tuple[str, tuple[CommitData, ...]]:
            return self._changed(commit.meta_range_id, before, head, allow_empty=allow_empty), (head,)

        return self._replace(branch, "revert", draft, trees)

    def cherry_pick(
        self, branch: str, reference: str, draft: CommitDraft | None = None, *, parent: int = 0
    ) -> CommitData:
        """Make the changes of another commit. Without a draft the new commit says what that one does."""
        commit = self._area.references.commit(reference)
        before = self._parent(commit, parent)
        said = draft or CommitDraft(commit.committer, commit.message, commit.metadata)
        metadata = {**said.metadata, "cherry-pick-commit": commit.id}

        def trees(head: CommitData) -> tuple[str, tuple[CommitData, ...]]:
            return self._changed(before, commit.meta_range_id, head, allow_empty=False), (head,)

        return self._replace(branch, "cherry-pick", replace(said, metadata=metadata), trees)

    def hard_reset(self, branch: str, reference: str) -> CommitData:
        """Put a branch onto another commit. Branches with uncommitted changes are refused."""
        commit = self._area.references.commit(reference)
        self._swap(branch, "reset", lambda _: commit)
        return commit

    def replace_tree(self, branch: str, draft: CommitDraft, tree: Callable[[str], str], doing: str) -> CommitData:
        """Commit what `tree` makes of the branch's own tree."""

        def trees(head: CommitData) -> tuple[str, tuple[CommitData, ...]]:
            return tree(head.meta_range_id), (head,)

        return self._replace(branch, doing, draft, trees)

    def _replace(self, name: str, doing: str, draft: CommitDraft, trees: Trees) -> CommitData:
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

        def refuse_changes(branch: Branch) -> None:
            if has_changes(self._area, branch):
                raise UncommittedChangesError(name)

        swapped(self._area, name, doing, refuse_changes)
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


# Imports: records of elsewhere become a commit, in place of what was below their prefixes.


class Importer:
    """Imports into branches of one repository that have no uncommitted changes."""

    def __init__(self, area: Area, merger: Merger) -> None:
        self._area = area
        self._merger = merger

    def import_records(
        self,
        branch: str,
        records: Callable[[], Iterable[RecordColumns]],
        draft: CommitDraft,
        *,
        prefixes: Sequence[bytes] = (),
    ) -> CommitData:
        """Commit `records` (in order of their keys; called again for another try). What the branch has below one of the
        prefixes and is not among them is deleted.

        Raises RangeRecordError, and as `Merger`.
        """

        def tree(head: str) -> str:
            old = [self._deletions(head, prefix) for prefix in disjoint(prefixes)]
            return apply(self._area.ranges, head, layered([records(), *old])).metarange_id

        return self._merger.replace_tree(branch, draft, tree, "import")

    def _deletions(self, tree: str, prefix: bytes) -> Iterator[RecordColumns]:
        for batch in self._area.ranges.records(tree, prefix, after_prefix(prefix)):
            yield RecordColumns(batch.keys, pa.repeat(pa.scalar(TOMBSTONE, BINARY), len(batch)))


def disjoint(prefixes: Sequence[bytes]) -> list[bytes]:
    """The prefixes without those that begin with another of them, in order."""
    found: list[bytes] = []
    for prefix in sorted(set(prefixes)):
        if not (found and prefix.startswith(found[-1])):
            found.append(prefix)
    return found
