"""Commits: what the sealed tokens and the compacted base hold becomes a tree (docs/design/staging-areas.md#commits)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compaction.staging.errors import NoChangesError, ProtectedBranchError, UncommittedChangesError
from compaction.staging.flows.area import Area
from compaction.staging.flows.marks import pin
from compaction.staging.flows.swapping import has_changes, seal, swapped
from compaction.staging.flows.views import view_of
from compaction.staging.format.messages import CommitData
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.records import BranchRecord
from compaction.staging.staged.layers import layered
from compaction.staging.tree.applying import apply
from compaction.staging.tree.diffing import diff


@dataclass(frozen=True, slots=True)
class Draft:
    """What a commit will say."""

    committer: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a hook is asked about: `tree` is the metarange that the branch would have."""

    branch: str
    draft: Draft
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

    def commit(self, name: str, draft: Draft, *, allow_empty: bool = False, tree: str | None = None) -> CommitData:
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

    def _commit(self, name: str, draft: Draft, allow_empty: bool, tree: str | None) -> CommitData:
        seal(self._area, name)
        made: list[CommitData] = []

        def committed(branch: Branch) -> BranchRecord:
            head = self._area.commits.get(branch.record.commit_id)
            if tree is not None and has_changes(self._area, branch):
                raise UncommittedChangesError(name)
            result = self._tree(branch) if tree is None else tree
            if not allow_empty and self._same(head.meta_range_id, result):
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

    def add(self, draft: Draft, tree: str, *parents: CommitData) -> CommitData:
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

    def _same(self, one: str, other: str) -> bool:
        """Whether two trees hold the same: trees of other cuts may."""
        return one == other or next(diff(self._area.ranges, one, other), None) is None
