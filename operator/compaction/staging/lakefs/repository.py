"""A repository of a live lakeFS, checked before anything of it is touched, and the rows of its branches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from compaction.staging.errors import (
    CorruptMessageError,
    LiveStoreRefusedError,
    RepositoryReadOnlyError,
    UnknownRefError,
)
from compaction.staging.format.messages import BranchData, CommitData, bytes_field, read_fields
from compaction.staging.refs.branches import Repositories, RepositoryRecord
from compaction.staging.refs.names import (
    BRANCH_KEYS,
    COMMIT_ID,
    COMMIT_KEYS,
    REPOSITORIES_PARTITION,
    REPOSITORY_KEYS,
    check_branch_name,
    check_repository_name,
)
from compaction.staging.staged.rows import StagedTokens
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from compaction.staging.kv.sql import SqlKeyValueStore

# Rows of branches that a lakeFS server wrote: read with all that is in them, and changed in one field only.
#
# A message that is encoded again is not always the same bytes: so a row is cut into its fields, and only those of the
# tokens are replaced. A row with fields that this version does not know is refused: something else than the commit
# may lie below its tokens then, as a compaction of the servers' own would record it, and a merge would be wrong
# beside it.

_STAGING: Final = 3
_SEALED: Final = 4
_KNOWN: Final = frozenset(range(1, 6))


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch as it was read at one moment. `raw`: the exact bytes of its row, which a swap compares."""

    data: BranchData
    raw: bytes

    @property
    def name(self) -> str:
        return self.data.id

    @property
    def sealed(self) -> tuple[str, ...]:
        """The sealed tokens, the newest first."""
        return self.data.sealed_tokens

    def with_sealed(self, tokens: Sequence[str]) -> bytes:
        """The row with other sealed tokens and nothing else changed, byte for byte."""
        return _edited(self.raw, tokens, None)

    def with_merged(self, old: Sequence[str], fresh: str) -> bytes:
        """The row with one token in the place of its oldest ones."""
        return self.with_sealed((*self.sealed[: len(self.sealed) - len(old)], fresh))

    def with_seal(self, fresh: str) -> bytes:
        """The row with its staging token sealed, as the first phase of a commit does, and `fresh` as the new one."""
        return _edited(self.raw, (self.data.staging_token, *self.sealed), fresh)


def read_branch_row(raw: bytes, *, name: str, repository: str) -> BranchRow:
    """Raises CorruptMessageError, and LiveStoreRefusedError for a row that no server of a known version writes."""
    where = f"branch {name} of repository {repository}"
    data = BranchData.decode(raw, name=where)
    counts = Counter(field.number for field in read_fields(raw))
    strange = sorted(counts.keys() - _KNOWN)
    if strange:
        reason = (
            f"its row has field {strange[0]}, which a newer lakeFS wrote; use a version of the compactor that knows it"
        )
        raise LiveStoreRefusedError(where, reason)
    twice = [number for number in _KNOWN - {_SEALED} if counts[number] > 1]
    tokens = (data.staging_token, *data.sealed_tokens)
    if twice:
        raise LiveStoreRefusedError(where, f"its row has field {twice[0]} more than once")
    if data.id != name:
        raise LiveStoreRefusedError(where, f"its row is of branch {data.id[:80]!a}")
    if not all(tokens) or len(set(tokens)) < len(tokens):
        raise LiveStoreRefusedError(where, "one of its tokens is empty, or in its row twice")
    if not COMMIT_ID.fullmatch(data.commit_id):
        raise LiveStoreRefusedError(where, f"its commit {data.commit_id[:80]!a} is no id of a commit")
    return BranchRow(data, raw)


def _edited(raw: bytes, sealed: Sequence[str], staging: str | None) -> bytes:
    """The fields in their order; the sealed tokens where the first of them was, else behind the staging token."""
    fields = list(read_fields(raw))
    written = b"".join(bytes_field(_SEALED, token.encode(), always=True) for token in sealed)
    place = next((number for number, item in enumerate(fields) if item.number == _SEALED), None)
    parts = []
    for number, item in enumerate(fields):
        if number == place:
            parts.append(written)
        if item.number == _STAGING and staging is not None:
            parts.append(bytes_field(_STAGING, staging.encode()))
        elif item.number != _SEALED:
            parts.append(item.raw)
        if place is None and item.number == _STAGING:
            parts.append(written)
    return b"".join(parts)


# A repository of a live lakeFS, and the checks before anything of it is touched: what is not known is refused.
#
# docs/design/staging.md#live-lakefs.

_ACTIVE: Final = 0
_LAYOUT: Final = (
    "SELECT (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, NULL) || ' ' || a.attnotnull, ', '"
    " ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped),"
    " (SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c WHERE c.conrelid = t.oid AND c.contype = 'p'),"
    " (SELECT pg_get_partkeydef(t.oid)),"
    " (SELECT count(*) FROM pg_inherits i WHERE i.inhparent = t.oid)"
    " FROM pg_class t WHERE t.oid = to_regclass(quote_ident(:name))"
)
_KNOWN_LAYOUT: Final = (
    "partition_key bytea true, key bytea true, value bytea true",
    "PRIMARY KEY (partition_key, key)",
    "HASH (partition_key)",
)


@dataclass(frozen=True, slots=True)
class LiveRepository:
    """One repository that lakeFS servers work on. `partition`: of its branches and commits. `objects` opens its
    storage namespace, once, when an object is first read. `clock`: seconds since 1970; `sleep`: the quiet period.
    """

    name: str
    partition: str
    namespace: str
    kv: SqlKeyValueStore
    objects: Callable[[], RangeStorage]
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    @property
    def ranges(self) -> RangeStorage:
        """Its ranges and metaranges. Raises ObjectStoreUrlError when the storage namespace cannot be opened here."""
        return self.objects()

    @property
    def tokens(self) -> StagedTokens:
        """The staged changes of all tokens."""
        return StagedTokens(self.kv)

    def check(self) -> None:
        """Check the store and the repository again: servers may be upgraded and repositories deleted meanwhile.

        Raises SchemaVersionError, UnknownRefError, RepositoryReadOnlyError, LiveStoreRefusedError.
        """
        Repositories(self.kv).check_version()
        if _partition(self.name, read_repository(self.kv, self.name)) != self.partition:
            raise LiveStoreRefusedError(f"repository {self.name}", "it was deleted and created again; open it again")

    def branch(self, name: str) -> BranchRow:
        """A branch with the exact bytes of its row. Raises UnknownRefError, CorruptMessageError,
        LiveStoreRefusedError.
        """
        raw = self.branch_bytes(name)
        if raw is None:
            raise UnknownRefError("branch", name)
        return read_branch_row(raw, name=name, repository=self.name)

    def branch_bytes(self, name: str) -> bytes | None:
        """The row of a branch as it is now; None when there is none."""
        return self.kv.get(self.partition, branch_key(name))

    def branch_rows(self) -> Iterator[tuple[str, bytes]]:
        """Names and rows of all branches, by name."""
        start, stop = BRANCH_KEYS.encode(), BRANCH_KEYS[:-1].encode() + b"0"
        for page in self.kv.scan(self.partition, start, stop):
            for key, raw in page:
                yield key.decode(errors="replace").removeprefix(BRANCH_KEYS), raw

    def used_tokens(self) -> set[str]:
        """All tokens that a branch of the repository names. CorruptMessageError when one cannot be read."""
        used: set[str] = set()
        for name, raw in self.branch_rows():
            data = BranchData.decode(raw, name=f"branch {name} of repository {self.name}")
            used.update((data.staging_token, *data.sealed_tokens))
        return used

    def head(self, row: BranchRow) -> str:
        """The metarange of a branch's commit, "" for the empty tree. Raises UnknownRefError, CorruptMessageError."""
        found = self.kv.get(self.partition, (COMMIT_KEYS + row.data.commit_id).encode())
        if found is None:
            raise UnknownRefError("commit", row.data.commit_id)
        return CommitData.decode(found, name=f"commit {row.data.commit_id} of repository {self.name}").meta_range_id


def branch_key(name: str) -> bytes:
    """The key of a branch's row in the partition of its repository. Raises StagingNameError."""
    return (BRANCH_KEYS + check_branch_name(name)).encode()


def open_live_repository(
    kv: SqlKeyValueStore,
    name: str,
    *,
    ranges: RangeStorage | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> LiveRepository:
    """A repository of a live lakeFS, after all checks of store and repository.

    `ranges`: its objects, for a namespace that has another URL here; without it the namespace that the repository names
    is opened with `options` when the first object is read.

    Raises:
        LiveStoreRefusedError: no PostgreSQL, another layout of the table, a repository of this project.
        SchemaVersionError, UnknownRefError, RepositoryReadOnlyError, StagingNameError
    """
    check_layout(kv)
    Repositories(kv).check_version()
    data = read_repository(kv, name)
    objects = cache(lambda: ranges or RangeStorage(open_objects(data.storage_namespace, options=options)))
    return LiveRepository(name, _partition(name, data), data.storage_namespace, kv, objects, clock, sleep)


def live_repositories(kv: SqlKeyValueStore) -> Iterator[str]:
    """Names of the repositories that lakeFS servers work on, those that are refused among them.

    Raises LiveStoreRefusedError, SchemaVersionError, CorruptMessageError, DatabaseError.
    """
    check_layout(kv)
    Repositories(kv).check_version()
    start, stop = REPOSITORY_KEYS.encode(), REPOSITORY_KEYS[:-1].encode() + b"0"
    for page in kv.scan(REPOSITORIES_PARTITION, start, stop):
        for key, raw in page:
            name = key.decode(errors="replace").removeprefix(REPOSITORY_KEYS)
            if not RepositoryRecord.decode(raw, name=f"repository {name}").compactable:
                yield name


def is_deleted(kv: SqlKeyValueStore, partition: str) -> bool:
    """Return whether no repository has this partition, and no branch is left in it. A record that cannot be read may be
    that of any repository.
    """
    start, stop = REPOSITORY_KEYS.encode(), REPOSITORY_KEYS[:-1].encode() + b"0"
    for page in kv.scan(REPOSITORIES_PARTITION, start, stop):
        for key, raw in page:
            name = key.decode(errors="replace").removeprefix(REPOSITORY_KEYS)
            try:
                record = RepositoryRecord.decode(raw, name=f"repository {name}")
            except CorruptMessageError:
                return False
            if _partition(name, record) == partition:
                return False
    return not any(kv.scan(partition, BRANCH_KEYS.encode(), BRANCH_KEYS[:-1].encode() + b"0", page=1))


def check_layout(kv: SqlKeyValueStore) -> None:
    """Raises LiveStoreRefusedError unless the table is lakeFS's on PostgreSQL."""
    # Who has opened no database, as for the help of a command, waits for no import of what opens one.
    from sqlalchemy import text

    from compaction.staging.kv.sql import CHILDREN

    if kv.database.engine.dialect.name != "postgresql":
        raise LiveStoreRefusedError(kv.name, "a live lakeFS is supported on PostgreSQL only; pass a postgresql:// URL")

    def layout(connection: Connection) -> tuple[object, ...] | None:
        row = connection.execute(text(_LAYOUT), {"name": kv.table}).one_or_none()
        return None if row is None else tuple(row)

    found = kv.database.alone(layout)
    if found is None:
        raise LiveStoreRefusedError(kv.name, f'there is no table "{kv.table}"; name the table of the lakeFS servers')
    if found != (*_KNOWN_LAYOUT, CHILDREN):
        raise LiveStoreRefusedError(
            kv.name, f'table "{kv.table}" has another layout than lakeFS creates: {", ".join(map(str, found))}'
        )


def read_repository(kv: SqlKeyValueStore, name: str) -> RepositoryRecord:
    """Raises UnknownRefError (also for one that is being deleted), RepositoryReadOnlyError, LiveStoreRefusedError,
    CorruptMessageError, StagingNameError.
    """
    raw = kv.get(REPOSITORIES_PARTITION, (REPOSITORY_KEYS + check_repository_name(name)).encode())
    if raw is None:
        raise UnknownRefError("repository", name)
    data = RepositoryRecord.decode(raw, name=f"repository {name}")
    where = f"repository {name}"
    if data.state != _ACTIVE:
        raise LiveStoreRefusedError(where, f"it is not active (state {data.state}: it is being deleted)")
    if data.read_only:
        raise RepositoryReadOnlyError(name)
    if data.compactable:
        raise LiveStoreRefusedError(where, "it is a repository of this project; compact its branches instead")
    if data.id != name or not data.instance_uid or not data.storage_namespace:
        raise LiveStoreRefusedError(where, "its row lacks its name, its instance or its storage namespace")
    return data


def _partition(name: str, data: RepositoryRecord) -> str:
    return f"{name}-{data.instance_uid}"
