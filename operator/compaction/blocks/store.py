"""A block store as the rest of the system sees it: its objects and its index together.

A facade without a state of its own; every method is one transaction of the index, given the time by the store's clock.
Safe to use from several threads and processes at once. See docs/block-stores.md for what is promised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, Self

from compaction.blocks.errors import BlockStoreError, ForeignFileError
from compaction.blocks.identity import bind
from compaction.blocks.index import claims, listing, quarantine, registering, replacing
from compaction.blocks.index.engine import IndexDatabase
from compaction.blocks.index.listing import EVERYTHING, BlockFilter, BlockRecord, Listing
from compaction.blocks.index.quarantine import Fault, Quarantined
from compaction.blocks.index.queue import QueueChanges, QueueReading, read_changes, read_queue
from compaction.blocks.index.registering import Registered
from compaction.blocks.index.replacing import BlockReplacement, Replaced
from compaction.blocks.model import SECOND, Block
from compaction.blocks.owners import FolderOwners
from compaction.storage.database.engine import DEFAULT_PATIENCE
from compaction.storage.errors import StorageError
from compaction.storage.objects.store import ObjectStorage, open_objects
from compaction.storage.processes import Holder
from compaction.storage.unreachable import StoreAddress

DESCRIBED_AT_ONCE: Final = 8
"""Footers that are read beside one another when many blocks are registered."""
OWNERS_KEPT: Final = 60.0
"""Seconds. What comes after that is found before anything is deleted."""


@dataclass(frozen=True, slots=True)
class BlockStoreConnection:
    """How a store is reached. `url`: of the objects; `index_url` and `options` (credentials) never show. `authorities`:
    certificates that the index is trusted by, in PEM. `index_from` and `options_from`: where these two are written, for
    messages, such as `Secret index`.
    """

    url: str
    index_url: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    options_from: str = ""
    index_from: str = ""
    authorities: str = field(default="", repr=False)

    @property
    def address(self) -> StoreAddress:
        """What messages about a store that cannot be reached are made of."""
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
        one = partial(self.describe, tenant=tenant, shard=shard, level=level, time_column=time_column, verify=verify)
        with ThreadPoolExecutor(max(1, min(DESCRIBED_AT_ONCE, len(paths)))) as pool:
            blocks = list(pool.map(one, paths))
        return self.register_blocks(blocks)

    def register_blocks(self, blocks: Sequence[Block]) -> Registered:
        """The same for blocks that were described before, of whatever tenants."""
        return registering.register(self.index, blocks, now=self.now())

    def live(self, which: BlockFilter = EVERYTHING) -> Listing:
        """The live blocks at one instant."""
        return listing.live_blocks(self.index, which)

    def inspect(self, block: str) -> BlockRecord | None:
        """All that is known about a block."""
        return listing.inspect(self.index, block)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def high_water(self, job: str) -> int:
        """The largest token that was ever accepted for the job."""
        return claims.high_water(self.index, job)

    def claim(
        self, *, job: str, token: int, sources: Sequence[str], output_level: int, holder: Holder | None = None
    ) -> claims.Claimed:
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

    def replace(self, result: BlockReplacement) -> Replaced:
        """Commit a result: see `index.replacing.replace`."""
        return replacing.replace(self.index, result, now=self.now())

    def job(self, name: str) -> claims.JobRecord | None:
        """What is remembered of a job."""
        return claims.job_record(self.index, name)

    def open_jobs(self) -> tuple[claims.JobRecord, ...]:
        """All jobs that hold a claim."""
        return claims.open_jobs(self.index)

    # -- quarantine ---------------------------------------------------------------------------------------------------

    def quarantined(self) -> tuple[Quarantined, ...]:
        """Quarantined blocks, the oldest first."""
        return quarantine.quarantined(self.index)

    def set_aside(self, faults: Mapping[str, Fault], *, job: str | None = None) -> None:
        """Quarantine live blocks, by id. Raises UnknownBlockError."""
        quarantine.quarantine(self.index, faults, now=self.now(), job=job)

    def release(self, block: str) -> bool:
        """The block waits for compaction again. Raises UnknownBlockError."""
        return quarantine.release(self.index, block, now=self.now())

    def drop(self, block: str) -> bool:
        """Give up the rows of a quarantined block. Raises UnknownBlockError."""
        return quarantine.drop(self.index, block, now=self.now())

    # -- the queue ----------------------------------------------------------------------------------------------------

    def queue(self) -> QueueReading:
        """The whole queue in one pass."""
        return read_queue(self.index)

    def changes(self, since: int) -> QueueChanges | None:
        """What changed in the queue since a version; None: read all of it."""
        return read_changes(self.index, since)
