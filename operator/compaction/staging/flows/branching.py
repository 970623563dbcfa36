"""Repositories and branches come and go (docs/design/staging-areas.md#branches)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compaction.staging.errors import ProtectedBranchError
from compaction.staging.flows.area import Area
from compaction.staging.flows.journal import journal
from compaction.staging.flows.receipts import forget_receipts
from compaction.staging.flows.swapping import swapped
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.commits import FIRST_MESSAGE
from compaction.staging.refs.records import BranchRecord
from compaction.staging.staged.tokens import new_token


class Brancher:
    """Creates and deletes branches of one repository."""

    def __init__(self, area: Area, *, protected: Callable[[str], bool] = lambda _: False) -> None:
        self._area = area
        self._protected = protected

    def begin(self, committer: str) -> Branch:
        """The first commit, of the empty tree, and the default branch on it: of a repository that was just created.

        Raises RefExistsError.
        """
        commit = self._area.commits.add(
            metarange_id="", parents=(), committer=committer, message=FIRST_MESSAGE, metadata={}, now=self._area.clock()
        )
        return self._create(self._area.repository.default_branch, commit.id)

    def create(self, name: str, source: str, *, hidden: bool = False) -> Branch:
        """A branch on the commit of a reference; uncommitted changes of that stay where they are.

        Raises StagingNameError, RefExistsError, UnknownRefError, RepositoryReadOnlyError.
        """
        self._area.repository.check_writable()
        return self._create(name, self._area.references.commit(source).id, hidden=hidden)

    def delete(self, name: str) -> None:
        """Delete a branch and what was uncommitted on it.

        First the record says so, then it goes: in between no swap by anybody else succeeds, so no token is put onto a
        branch that is no more. Raises UnknownRefError, ProtectedBranchError, RepositoryReadOnlyError.
        """
        self._area.repository.check_writable()
        if name == self._area.repository.default_branch:
            raise ProtectedBranchError(name, "deleting the default branch")
        if self._protected(name):
            raise ProtectedBranchError(name, "deleting it")

        def ended(branch: Branch) -> BranchRecord:
            journal(self._area, branch.record.tokens)
            return replace(branch.record, deleted=True)

        swapped(self._area, name, "delete it", ended)
        self._area.branches.remove(name)
        forget_receipts(self._area, name)

    def _create(self, name: str, commit_id: str, *, hidden: bool = False) -> Branch:
        token = new_token(self._area.repository.name, name)
        return self._area.branches.create(
            BranchRecord(id=name, commit_id=commit_id, staging_token=token, hidden=hidden)
        )
