"""Branches: read with the exact bytes of their row, and swapped for them.

docs/design/staging-areas.md#branch-record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compaction.staging.errors import CorruptMessageError, PredicateFailedError, RefExistsError, UnknownRefError
from compaction.staging.kv.port import KeyValueStore, Presence
from compaction.staging.refs.names import BRANCH_KEYS, check_branch_name
from compaction.staging.refs.records import BranchRecord
from compaction.staging.refs.repositories import Repository


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch as it was read at one moment. `row`: the bytes that a swap compares."""

    repository: Repository
    record: BranchRecord
    row: bytes

    @property
    def name(self) -> str:
        return self.record.id


class Branches:
    """The branches of one repository."""

    def __init__(self, kv: KeyValueStore, repository: Repository) -> None:
        self._kv = kv
        self._repository = repository

    def get(self, name: str) -> Branch:
        """Raises UnknownRefError, CorruptMessageError."""
        row = self._kv.get(self._repository.partition, _key(check_branch_name(name)))
        found = None if row is None else self._branch(name, row)
        if found is None or found.record.deleted:
            raise UnknownRefError("branch", name)
        return found

    def find(self, name: str) -> Branch | None:
        """The branch, None when there is none."""
        try:
            return self.get(name)
        except UnknownRefError:
            return None

    def every(self, unreadable: Callable[[str, CorruptMessageError], None] | None = None) -> Iterator[Branch]:
        """All branches, by name; each as it was when its page was read.

        `unreadable` is given the name of a branch whose row is damaged, and the others go on; without it the error is
        raised. Raises CorruptMessageError, DatabaseError.
        """
        start, stop = BRANCH_KEYS.encode(), BRANCH_KEYS[:-1].encode() + b"0"
        for page in self._kv.scan(self._repository.partition, start, stop):
            for key, row in page:
                name = key.decode(errors="replace").removeprefix(BRANCH_KEYS)
                try:
                    branch = self._branch(name, row)
                except CorruptMessageError as error:
                    if unreadable is None:
                        raise
                    unreadable(name, error)
                    continue
                if not branch.record.deleted:
                    yield branch

    def create(self, record: BranchRecord) -> Branch:
        """Raises StagingNameError, RefExistsError."""
        key = _key(check_branch_name(record.id))
        row = record.encode()
        before = self._kv.get(self._repository.partition, key)
        if before is not None and not self._branch(record.id, before).record.deleted:
            raise RefExistsError("branch", record.id)
        try:
            self._kv.set_if(self._repository.partition, key, row, Presence.ABSENT if before is None else before)
        except PredicateFailedError:
            raise RefExistsError("branch", record.id) from None
        return Branch(self._repository, record, row)

    def swap(self, branch: Branch, record: BranchRecord) -> Branch:
        """Write another record over exactly the one that was read. Raises PredicateFailedError: it was changed."""
        row = record.encode()
        self._kv.set_if(self._repository.partition, _key(branch.name), row, branch.row)
        return Branch(branch.repository, record, row)

    def remove(self, name: str) -> None:
        """Delete the row of a branch whose record says `deleted`."""
        self._kv.delete(self._repository.partition, _key(name))

    def _branch(self, name: str, row: bytes) -> Branch:
        record = BranchRecord.decode(row, name=f"branch {name} of repository {self._repository.name}")
        return Branch(self._repository, record, row)


def _key(name: str) -> bytes:
    return (BRANCH_KEYS + name).encode()
