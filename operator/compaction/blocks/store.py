"""A block store as the rest of the system sees it: its objects and its index, which know that they belong together."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self

from sqlalchemy import Connection, Select, column, delete, inspect, select, table, update
from ulid import ULID

from compaction.blocks.errors import BlockStoreError, ForeignFileError, IndexMismatchError
from compaction.blocks.index import claims, live_blocks, queued, registering
from compaction.blocks.index.live_blocks import EVERYTHING, BlockFilter, BlockRecord, Listing
from compaction.blocks.index.queued import Fault, Quarantined, QueueChanges, QueueReading, read_changes, read_queue
from compaction.blocks.index.registering import BlockReplacement, Registered, ReplacedBlocks
from compaction.blocks.index.tables import HEAD, METADATA, NEWEST_SCHEMA, IndexChange, IndexDatabase, head_version
from compaction.blocks.model import SECOND, Block
from compaction.blocks.owners import IDENTITY_PATH, FolderOwners
from compaction.storage.database import DEFAULT_PATIENCE
from compaction.storage.errors import ObjectExistsError, ObjectMissingError, StorageError
from compaction.storage.objects.store import ObjectStorage, open_objects
from compaction.storage.opened import Holder, StoreAddress

# The schema of the index, made or brought up to date by Alembic in one transaction; safe when many do it at once.

VERSION_TABLE: Final = "block_index_schema"
_VERSION: Final[Select[Any]] = select(column("version_num")).select_from(table(VERSION_TABLE))


def ensure_schema(database: IndexDatabase, *, identity: str) -> str:
    """Make the tables, or bring them up to date; returns the identity of the index.

    `identity`: given to an index that is new; one that exists keeps its own. A caller that deletes objects because the
    index does not know them compares it with what is written beside the objects: the index of another store knows
    nothing.

    Raises:
        DatabaseSchemaError: the schema is of a newer version of this program.
        DatabaseUnavailableError, DatabaseError
    """
    if database.read(_current) != NEWEST_SCHEMA:
        database.ordered(lambda connection: _upgrade(database, connection, identity))
    return database.read(_identity_of)


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(_VERSION).scalar()
    return found


def _upgrade(database: IndexDatabase, connection: Connection, identity: str) -> None:
    # Alembic takes longer to import than most commands take to ask the index.
    from compaction.blocks.index.migrations.upgrading import upgrade

    upgrade(connection, current=_current(connection), name=database.name, identity=identity)


# The identity that ties an index to its store: the same word is in the index and in an object beside the blocks.
#
# Without it, an index of another store, or a new and empty one after the database was lost, knows none of the
# objects, and an orphan collector would delete all of them. So a store is opened only with the index that it was
# created with.

_LONGEST: Final = 100
_AFTER: Final = "-after-"
"""In the identity of a rebuilt index: the index that it replaced."""
_WORD: Final = 26


def bind(objects: ObjectStorage, index: IndexDatabase) -> str:
    """Make both sides of a new store, or check those of one that exists; returns the identity.

    The index is first: a store without an identity gets that of an index in which nothing was ever changed, so a crash
    in between is repaired by the next call, and nothing else is ever bound.

    Raises:
        IndexMismatchError: they do not belong together, or one of both was lost.
        ForeignFileError: a new store would lie inside another one, or in the folder of a table.
        DatabaseSchemaError, DatabaseUnavailableError, DatabaseError, ObjectError
    """
    ours = ensure_schema(index, identity=str(ULID()))
    theirs = read_identity(objects)
    if theirs is None:
        if index.read(head_version) != 0:
            raise IndexMismatchError(
                objects.url,
                index.name,
                f"the index has blocks, and there is no object {IDENTITY_PATH} in the store: correct the URL of one of "
                f"both; if the object was deleted, write it again with the text {ours}",
            )
        # A merge of the inner store would delete what is live in the outer one.
        FolderOwners(objects).refuse_new_store()
        theirs = _write(objects, ours)
    if theirs != ours:
        empty = index.read(head_version) == 0
        advice = (
            "restore the database, or make the index from the blocks with `compactor blocks rebuild-index`"
            if empty
            else "correct the URL of one of both"
        )
        what = "the index is new and the store is not" if empty else "the index is that of another store"
        raise IndexMismatchError(objects.url, index.name, f"{what}: {advice}")
    return ours


def begin_anew(objects: ObjectStorage, index: IndexDatabase) -> str:
    """Take an empty index for a store whose own was lost; returns the word for `finish_anew`. Until then store and
    index do not belong together, so a half-built index is never used. What an earlier call left in it is taken
    out.

    Raises:
        IndexMismatchError: the index is in use, of this store or of another: one that exists is never replaced.
        ForeignFileError: see `bind`.
        DatabaseSchemaError, DatabaseUnavailableError, DatabaseError, ObjectError
    """
    theirs = read_identity(objects)
    if theirs is None:
        FolderOwners(objects).refuse_new_store()
        theirs = _write(objects, str(ULID()))
    suffix = f"{_AFTER}{theirs[:_WORD]}"
    word = f"{ULID()}{suffix}"
    ours = ensure_schema(index, identity=word)
    if ours == theirs:
        reason = "the index is the one of this store: it is not lost. To rebuild it, stop everything that uses it and "
        raise IndexMismatchError(objects.url, index.name, f"{reason}name an empty database")
    if not ours.endswith(suffix) and index.read(head_version) != 0:
        reason = "the index is not empty, and not of this store: name an empty database"
        raise IndexMismatchError(objects.url, index.name, reason)
    index.change(lambda change: _empty(change, word))
    return word


def finish_anew(objects: ObjectStorage, index: IndexDatabase, word: str) -> None:
    """From now on the store is opened with this index, and with no other: not with the one that was lost either, should
    it come back. Repeating is harmless. Raises IndexMismatchError: another process has started to rebuild it since.
    """
    if index.read(_identity_of) != word:
        raise IndexMismatchError(objects.url, index.name, "another process has started to rebuild the same index")
    index.change(_begin_history)
    objects.put(IDENTITY_PATH, word.encode())


def _begin_history(change: IndexChange) -> None:
    """No reader goes on at an earlier version: those of the lost index were other states, those of this one parts."""
    change.connection.execute(update(HEAD).values(forgotten=change.version))


def _identity_of(connection: Connection) -> str:
    return str(connection.execute(select(HEAD.c.identity)).scalar_one())


def _empty(change: IndexChange, word: str) -> None:
    for each in METADATA.sorted_tables:
        if each is not HEAD:
            change.connection.execute(delete(each))
    change.connection.execute(update(HEAD).values(identity=word))


def read_identity(objects: ObjectStorage) -> str | None:
    """Return the identity that the store states; None when it states none. Raises IndexMismatchError for an object that
    is no identity.
    """
    try:
        data = objects.get(IDENTITY_PATH)
    except ObjectMissingError:
        return None
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        # Refused below as damaged, as an empty one is.
        text = ""
    if not text or len(text) > _LONGEST:
        raise IndexMismatchError(
            objects.url,
            "its index",
            f"the object {IDENTITY_PATH} is damaged: restore it, or delete it and rebuild the index",
        )
    return text


def _write(objects: ObjectStorage, identity: str) -> str:
    """The identity that the store has from now on: this one, or that of the process that came first."""
    try:
        objects.put(IDENTITY_PATH, identity.encode(), if_absent=True)
    except ObjectExistsError:
        # Another process was faster: both sides of the store must have one identity.
        return read_identity(objects) or identity
    return identity


# A block store as the rest of the system sees it: its objects and its index together.
#
# A facade without a state of its own; every method is one transaction of the index, given the time by the store's
# clock. Safe to use from several threads and processes at once. See docs/block-stores.md for what is promised.

DESCRIBED_AT_ONCE: Final = 8
"""Footers that are read beside one another when many blocks are registered."""
OWNERS_KEPT: Final = 60.0
"""Seconds. What comes after that is found before anything is deleted."""


@dataclass(frozen=True, slots=True)
class BlockStoreConnection:
    """The connection to a store. `url`: of the objects; `index_url` and `options` (credentials) never show.
    `authorities`: certificates that the index is trusted by, in PEM. `index_from` and `options_from`: the places where
    these two are written, for messages, such as `Secret index`.
    """

    url: str
    index_url: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    options_from: str = ""
    index_from: str = ""
    authorities: str = field(default="", repr=False)

    @property
    def address(self) -> StoreAddress:
        """The address of the store in messages about a store that cannot be reached."""
        return StoreAddress(self.url, self.options, self.options_from, self.index_from)


@dataclass(frozen=True, slots=True)
class BlockStore:
    """The blocks below one URL with their index. `clock` gives epoch seconds. `owners`: of folders, as they were at
    most a minute ago: a writer registers into the same few for ever.
    """

    objects: ObjectStorage
    index: IndexDatabase
    clock: Callable[[], float] = time.time
    owners: FolderOwners = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "owners", FolderOwners(self.objects, keep=OWNERS_KEPT))

    @classmethod
    def open(
        cls,
        connection: BlockStoreConnection,
        *,
        clock: Callable[[], float] = time.time,
        patience: float = DEFAULT_PATIENCE,
    ) -> Self:
        """Open a store; a new one is made. `patience`: seconds for which calls of the index are repeated.

        Raises:
            ObjectStoreUrlError, DatabaseUrlError: a URL or an option cannot be used.
            IndexMismatchError: objects and index do not belong together.
            ForeignFileError: a new store would lie inside another one, or in the folder of a table.
            ObjectError, DatabaseError: one of both cannot be reached.
        """
        objects = open_objects(connection.url, options=connection.options)
        index = IndexDatabase.open(connection.index_url, authorities=connection.authorities, patience=patience)
        try:
            bind(objects, index)
        except (BlockStoreError, StorageError):
            # No caller gets a store that it could close.
            index.close()
            raise
        return cls(objects, index, clock)

    def close(self) -> None:
        """Close the connections to the index."""
        self.index.close()

    def now(self) -> int:
        """Epoch microseconds."""
        return int(self.clock() * SECOND)

    # -- writers and readers ------------------------------------------------------------------------------------------

    def describe(
        self,
        path: str,
        *,
        tenant: str,
        shard: int,
        level: int = 0,
        time_column: str = "",
        sort_key: tuple[str, ...] = (),
        verify: bool = False,
        given_up: Collection[str] = (),
    ) -> Block:
        """The block that lies at a path, by its footer. Raises BlockFormatError and ObjectError."""
        # Whoever only asks the index needs nothing that reads Parquet, which takes longer to import than to ask.
        from compaction.blocks.registration.describe import describe

        return describe(
            self.objects,
            path,
            tenant=tenant,
            shard=shard,
            level=level,
            time_column=time_column,
            sort_key=sort_key,
            verify=verify,
            given_up=given_up,
        )

    def register(
        self,
        paths: Sequence[str],
        *,
        tenant: str,
        shard: int,
        level: int = 0,
        time_column: str = "",
        verify: bool = False,
    ) -> Registered:
        """Make uploaded blocks live and let them wait for compaction; all of them, or none. Repeating is harmless.

        Raises BlockFormatError (ForeignFileError: a table format or another store owns a file), ObjectError,
        InvalidBlockError, BlockConflictError, InvalidTenantError and errors of the index.
        """
        for path, sign in self.owners.of(paths).items():
            raise ForeignFileError(path, f"it belongs to {sign}")
        described = partial(
            self.describe, tenant=tenant, shard=shard, level=level, time_column=time_column, verify=verify
        )
        with ThreadPoolExecutor(max(1, min(DESCRIBED_AT_ONCE, len(paths)))) as pool:
            blocks = list(pool.map(described, paths))
        return self.register_blocks(blocks)

    def register_blocks(self, blocks: Sequence[Block]) -> Registered:
        """The same for blocks that were described before, of whatever tenants."""
        return registering.register(self.index, blocks, now=self.now())

    def live(self, which: BlockFilter = EVERYTHING) -> Listing:
        """The live blocks at one instant."""
        return live_blocks.live_blocks(self.index, which)

    def inspect(self, block: str) -> BlockRecord | None:
        """All that is known about a block."""
        return live_blocks.inspect(self.index, block)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def high_water(self, job: str) -> int:
        """The largest token that was ever accepted for the job."""
        return claims.high_water(self.index, job)

    def claim(
        self, *, job: str, token: int, sources: Sequence[str], output_level: int, holder: Holder | None = None
    ) -> claims.ClaimedJob:
        """From now on only `token` may commit for the job. Raises StaleTokenError, BlockClaimError."""
        return claims.claim(
            self.index,
            job=job,
            token=token,
            sources=sources,
            now=self.now(),
            output_level=output_level,
            holder=holder,
        )

    def retire(self, job: str, *, token: int | None = None, holder: str | None = None) -> bool:
        """Nothing may be committed for the job any more; its blocks are free. See `claims.retire`."""
        return claims.retire(self.index, job, now=self.now(), token=token, holder=holder)

    def replace(self, result: BlockReplacement) -> ReplacedBlocks:
        """Commit a result: see `index.registering.replace`."""
        return registering.replace(self.index, result, clock=self.now)

    def job(self, name: str) -> claims.JobRecord | None:
        """Return the record of a job."""
        return claims.job_record(self.index, name)

    def open_jobs(self) -> tuple[claims.JobRecord, ...]:
        """All jobs that hold a claim."""
        return claims.open_jobs(self.index)

    # -- quarantine ---------------------------------------------------------------------------------------------------

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Quarantined blocks, the oldest first."""
        return queued.quarantined(self.index)

    def set_aside(self, faults: Mapping[str, Fault], *, job: str | None = None) -> None:
        """Quarantine live blocks, by id. Raises UnknownBlockError."""
        queued.quarantine(self.index, faults, now=self.now(), job=job)

    def release(self, block: str) -> bool:
        """The block waits for compaction again. Raises UnknownBlockError."""
        return queued.release(self.index, block, now=self.now())

    def drop(self, block: str) -> bool:
        """Give up the rows of a quarantined block. Raises UnknownBlockError."""
        return queued.drop(self.index, block, clock=self.now)

    # -- the queue ----------------------------------------------------------------------------------------------------

    def queue(self) -> QueueReading:
        """The whole queue in one pass."""
        return read_queue(self.index)

    def changes(self, since: int) -> QueueChanges | None:
        """Return the changes in the queue since a version; None: read all of it."""
        return read_changes(self.index, since)
