"""Branches and repositories: their records, read with the exact bytes of a row, and swapped for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self

from compaction.staging.errors import (
    CorruptMessageError,
    ForeignRepositoryError,
    PredicateFailedError,
    RefExistsError,
    RepositoryReadOnlyError,
    SchemaVersionError,
    UnknownRefError,
)
from compaction.staging.format.messages import (
    NUMBERS,
    SIGNED,
    TEXT,
    TRUTH,
    BranchData,
    ProtoTimestamp,
    RepositoryData,
    wire_at,
)
from compaction.staging.kv.port import KeyValueStore, Presence
from compaction.staging.refs.names import (
    BRANCH_KEYS,
    METADATA_PARTITION,
    REPOSITORIES_PARTITION,
    REPOSITORY_KEYS,
    SCHEMA_KEY,
    SCHEMA_VERSION,
    check_branch_name,
    check_repository_name,
    new_instance_uid,
)

# Records of branches and repositories: lakeFS's fields, and what a compaction adds to them.
#
# docs/design/staging-areas.md#branch-record.

ENDED_CLAIMS: Final = 8
"""So many jobs whose claims ended without a commit a branch knows by name: every write reads its row."""


@dataclass(frozen=True)
class RepositoryRecord(RepositoryData):
    """The row of a repository. `compactable`: its branches may have compacted bases.

    A server that does not know the field drops it with its first change, as it would drop a branch's compacted base,
    and with it the changes in it: so a repository without the field is not one of ours.
    """

    NAME: ClassVar[str] = "RepositoryData"
    compactable: bool = field(default=False, metadata=wire_at(101, TRUTH))


@dataclass(frozen=True)
class BranchRecord(BranchData):
    """The row of a branch. A change swaps it for the exact bytes that were read.

    compacted_base: the metarange below the tokens; empty: that of the commit. It holds what was in tokens that a
        compaction removed, so it is nothing without them being gone, and a commit starts from it and clears it.
    compaction_started: milliseconds since 1970; the cooldown runs from it. 0: never.
    claim_job, claim_token: the job that may swap the base, and its fencing token.
    compacted_job, compacted_token: who swapped the base last: proof that the job has committed.
    deleted: the branch is being deleted, and no swap of its row succeeds any more.
    ended_claims: of the jobs that were retired last, the largest token that was accepted for each, the oldest first.
    ended_token: the largest token of those before them, which are not known by name any more.
    """

    NAME: ClassVar[str] = "BranchData"
    compacted_base: str = field(default="", metadata=wire_at(101, TEXT))
    compaction_started: int = field(default=0, metadata=wire_at(102, SIGNED))
    claim_job: str = field(default="", metadata=wire_at(103, TEXT))
    claim_token: int = field(default=0, metadata=wire_at(104, SIGNED))
    compacted_job: str = field(default="", metadata=wire_at(105, TEXT))
    compacted_token: int = field(default=0, metadata=wire_at(106, SIGNED))
    deleted: bool = field(default=False, metadata=wire_at(107, TRUTH))
    ended_claims: Mapping[str, int] = field(default_factory=dict, metadata=wire_at(108, NUMBERS))
    ended_token: int = field(default=0, metadata=wire_at(109, SIGNED))

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens, the newest first: a change in one hides those of the same key behind it."""
        return (self.staging_token, *self.sealed_tokens)

    def high_water(self, job: str) -> int:
        """The largest token that may have been accepted for a job; 0: none."""
        claimed = self.claim_token if self.claim_job == job else 0
        compacted = self.compacted_token if self.compacted_job == job else 0
        return max(claimed, compacted, self.ended_claims.get(job, self.ended_token))

    def unclaimed(self) -> Self:
        """Without a claim. The tokens that were accepted for its job stay known."""
        if not self.claim_job:
            return self
        known = {job: token for job, token in self.ended_claims.items() if job != self.claim_job}
        known[self.claim_job] = self.high_water(self.claim_job)
        forgotten = [known.pop(next(iter(known))) for _ in range(len(known) - ENDED_CLAIMS)]
        return replace(
            self, claim_job="", claim_token=0, ended_claims=known, ended_token=max(self.ended_token, *forgotten, 0)
        )

    def sealed(self, fresh: str) -> BranchRecord:
        """The same content with the staging token sealed, and `fresh` as the new one."""
        return replace(self, staging_token=fresh, sealed_tokens=self.tokens)

    def cleared(self, commit_id: str) -> BranchRecord:
        """On a commit that holds what the sealed tokens and the compacted base held."""
        return replace(self, commit_id=commit_id, sealed_tokens=(), compacted_base="")

    def emptied(self, fresh: str) -> BranchRecord:
        """On the same commit with nothing uncommitted; `fresh` is the new staging token."""
        return replace(self, staging_token=fresh, sealed_tokens=(), compacted_base="")


# Repositories: each has a partition of the key-value store and a namespace of the object storage.

_ACTIVE = 0


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository: `partition` has its branches, tags and commits, `namespace` is the URL of its objects."""

    name: str
    partition: str
    namespace: str
    default_branch: str
    read_only: bool = False

    @property
    def receipts(self) -> str:
        """The partition of the receipts of compactions."""
        return f"{self.partition}:receipts"

    def check_writable(self) -> None:
        """Raises RepositoryReadOnlyError."""
        if self.read_only:
            raise RepositoryReadOnlyError(self.name)


class Repositories:
    """All repositories of a key-value store."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv

    def prepare(self) -> None:
        """Write the version of the layout into a new store. Raises SchemaVersionError when it has another one."""
        version = self._version()
        if version is None:
            self._kv.set(METADATA_PARTITION, SCHEMA_KEY, b"%d" % SCHEMA_VERSION)
        self.check_version()

    def check_version(self) -> None:
        """Raises SchemaVersionError when the store has not the one version that is known."""
        version = self._version()
        if version != b"%d" % SCHEMA_VERSION:
            raise SchemaVersionError(self._kv.name, version, SCHEMA_VERSION)

    def create(self, name: str, namespace: str, *, now: float, default_branch: str = "main") -> Repository:
        """A new repository without branches; `flows.branching` makes the first. Times in seconds since 1970.

        Raises StagingNameError, RefExistsError.
        """
        check_repository_name(name)
        data = RepositoryRecord(
            id=name,
            storage_namespace=namespace,
            default_branch_id=default_branch,
            creation_date=ProtoTimestamp(int(now), int(now % 1 * 1e9)),
            instance_uid=new_instance_uid(),
            compactable=True,
        )
        try:
            self._kv.set_if(REPOSITORIES_PARTITION, _repository_key(name), data.encode(), Presence.ABSENT)
        except PredicateFailedError:
            raise RefExistsError("repository", name) from None
        return _repository(data)

    def get(self, name: str) -> Repository:
        """A repository by its name.

        Raises:
            UnknownRefError: there is none, or it is being deleted.
            ForeignRepositoryError, CorruptMessageError
        """
        row = self._kv.get(REPOSITORIES_PARTITION, _repository_key(check_repository_name(name)))
        data = None if row is None else RepositoryRecord.decode(row, name=f"repository {name}")
        if data is None or data.state != _ACTIVE:
            raise UnknownRefError("repository", name)
        if not data.compactable:
            raise ForeignRepositoryError(name)
        return _repository(data)

    def every(self) -> Iterator[Repository]:
        """All repositories of this project that are not being deleted, by name."""
        stop = REPOSITORY_KEYS[:-1] + chr(ord("/") + 1)
        for page in self._kv.scan(REPOSITORIES_PARTITION, REPOSITORY_KEYS.encode(), stop.encode()):
            for key, row in page:
                data = RepositoryRecord.decode(row, name=key.decode(errors="replace"))
                if data.state == _ACTIVE and data.compactable:
                    yield _repository(data)

    def _version(self) -> bytes | None:
        return self._kv.get(METADATA_PARTITION, SCHEMA_KEY)


def _repository_key(name: str) -> bytes:
    return (REPOSITORY_KEYS + name).encode()


def _repository(data: RepositoryRecord) -> Repository:
    partition = f"{data.id}-{data.instance_uid}"
    return Repository(data.id, partition, data.storage_namespace, data.default_branch_id, data.read_only)


# Branches: read with the exact bytes of their row, and swapped for them.
#
# docs/design/staging-areas.md#branch-record.


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
        row = self._kv.get(self._repository.partition, _branch_key(check_branch_name(name)))
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
        key = _branch_key(check_branch_name(record.id))
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
        self._kv.set_if(self._repository.partition, _branch_key(branch.name), row, branch.row)
        return Branch(branch.repository, record, row)

    def remove(self, name: str) -> None:
        """Delete the row of a branch whose record says `deleted`."""
        self._kv.delete(self._repository.partition, _branch_key(name))

    def _branch(self, name: str, row: bytes) -> Branch:
        record = BranchRecord.decode(row, name=f"branch {name} of repository {self._repository.name}")
        return Branch(self._repository, record, row)


def _branch_key(name: str) -> bytes:
    return (BRANCH_KEYS + name).encode()
