"""Repositories: each has a partition of the key-value store and a namespace of the object storage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compaction.staging.errors import (
    ForeignRepositoryError,
    PredicateFailedError,
    RefExistsError,
    RepositoryReadOnlyError,
    SchemaVersionError,
    UnknownRefError,
)
from compaction.staging.format.messages import ProtoTimestamp
from compaction.staging.kv.port import KeyValueStore, Presence
from compaction.staging.refs.names import (
    METADATA_PARTITION,
    REPOSITORIES_PARTITION,
    REPOSITORY_KEYS,
    SCHEMA_KEY,
    SCHEMA_VERSION,
    check_repository_name,
    new_instance_uid,
)
from compaction.staging.refs.records import RepositoryRecord

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
            self._kv.set_if(REPOSITORIES_PARTITION, _key(name), data.encode(), Presence.ABSENT)
        except PredicateFailedError:
            raise RefExistsError("repository", name) from None
        return _repository(data)

    def get(self, name: str) -> Repository:
        """A repository by its name.

        Raises:
            UnknownRefError: there is none, or it is being deleted.
            ForeignRepositoryError, CorruptMessageError
        """
        row = self._kv.get(REPOSITORIES_PARTITION, _key(check_repository_name(name)))
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


def _key(name: str) -> bytes:
    return (REPOSITORY_KEYS + name).encode()


def _repository(data: RepositoryRecord) -> Repository:
    partition = f"{data.id}-{data.instance_uid}"
    return Repository(data.id, partition, data.storage_namespace, data.default_branch_id, data.read_only)
