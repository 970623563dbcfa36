"""Blocks of the index that wait to be merged, and those in quarantine, which do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from compaction.blocks.errors import UnknownBlockError
from compaction.blocks.index.rows import CONTENT, block_of
from compaction.blocks.index.tables import (
    BLOCKS,
    HEAD,
    QUARANTINE,
    BlockState,
    IndexChange,
    IndexDatabase,
    TombstoneReason,
    head_version,
)
from compaction.blocks.index.tombstones import bury
from compaction.blocks.model import Block, BlockKey

# The queue: every live block that is not quarantined, in the order of arrival.
#
# It is no list of its own but a view of the blocks, so a block cannot be in one and missing in the other, whatever
# dies. A claimed block stays in its place: when its job is given up it is simply planned again.
#
# A planner reads everything once (`read_queue`) and from then on what changed (`read_changes`). Versions make that
# exact: a reader at version v has seen every change up to v.

_PAGE: Final = 5000


class QueueEntry(NamedTuple):
    """A block that waits. `arrival` orders the queue, `at` is when it was enqueued (epoch microseconds), `job` the open
    job that claims it.
    """

    arrival: int
    at: int
    id: str
    tenant: str
    shard: int
    level: int
    min_time: int
    max_time: int
    rows: int
    bytes: int
    job: str | None
    schema_id: str

    @property
    def key(self) -> BlockKey:
        """With which blocks it may be compacted."""
        return BlockKey(self.tenant, self.shard, self.level)


@dataclass(frozen=True, slots=True)
class QueueReading:
    """The queue after change `version`."""

    version: int
    entries: tuple[QueueEntry, ...]


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """The changes of the queue from one version to `version`: `entries` are in the queue now (new, or changed: take the
    newer one), `left` are the ids of blocks that are in it no more, or never were at the time of a scan.
    """

    version: int
    entries: tuple[QueueEntry, ...]
    left: tuple[tuple[str, BlockKey], ...]


class Density(NamedTuple):
    """So many live blocks lie in so many combinations of tenant, shard and window of time: a query about one of them
    opens `blocks / windows` on average.
    """

    blocks: int
    windows: int


class QueueDepth(NamedTuple):
    """The blocks that wait for one key: their number, bytes, and the time at which the oldest came (epoch
    microseconds).
    """

    key: BlockKey
    blocks: int
    bytes: int
    oldest: int


_ENTRY: Final = tuple(
    BLOCKS.c[name]
    for name in (
        "arrival", "enqueued_at", "id", "tenant", "shard", "level", "min_time", "max_time", "rows", "bytes", "job",
        "schema_id",
    )
)  # fmt: skip


def read_queue(database: IndexDatabase, *, levels: int | None = None) -> QueueReading:
    """The whole queue in one pass, by arrival. `levels`: only levels below this number; blocks above are done."""
    return database.read(lambda connection: _read(connection, levels))


def _read(connection: Connection, levels: int | None) -> QueueReading:
    version = head_version(connection)
    query = select(*_ENTRY).where(BLOCKS.c.arrival.is_not(None)).order_by(BLOCKS.c.arrival)
    if levels is not None:
        query = query.where(BLOCKS.c.level < levels)
    rows = connection.execution_options(stream_results=True, yield_per=_PAGE).execute(query)
    return QueueReading(version, tuple(_entries(rows)))


def _entries(rows: Iterable[Row[Any]]) -> Iterator[QueueEntry]:
    """Tenants and schemas are few, and a row each has a text of its own: there may be a million."""
    texts: dict[str, str] = {}
    for arrival, at, block, tenant, shard, level, low, high, count, size, job, schema in map(tuple, rows):
        tenant, schema = texts.setdefault(tenant, tenant), texts.setdefault(schema, schema)
        yield QueueEntry(arrival, at, block, tenant, shard, level, low, high, count, size, job, schema)


def read_changes(database: IndexDatabase, since: int, *, levels: int | None = None) -> QueueChanges | None:
    """Return the changes after version `since`, by arrival; None when that version is too old: read the whole queue."""
    return database.read(lambda connection: _changes(connection, since, levels))


def _changes(connection: Connection, since: int, levels: int | None) -> QueueChanges | None:
    head = connection.execute(select(HEAD.c.version, HEAD.c.forgotten)).one()
    if since < head.forgotten or since > head.version:
        return None
    query = select(*_ENTRY).where(BLOCKS.c.version > since).order_by(BLOCKS.c.arrival, BLOCKS.c.id)
    if levels is not None:
        query = query.where(BLOCKS.c.level < levels)
    touched = list(_entries(connection.execute(query)))
    return QueueChanges(
        head.version,
        tuple(entry for entry in touched if entry.arrival is not None),
        tuple((entry.id, entry.key) for entry in touched if entry.arrival is None),
    )


def depths(database: IndexDatabase) -> tuple[QueueDepth, ...]:
    """Return the depth of the queue for each key, by tenant, shard and level."""
    columns = (BLOCKS.c.tenant, BLOCKS.c.shard, BLOCKS.c.level)
    query = (
        select(*columns, func.count(), func.sum(BLOCKS.c.bytes), func.min(BLOCKS.c.enqueued_at))
        .where(BLOCKS.c.arrival.is_not(None))
        .group_by(*columns)
        .order_by(*columns)
    )
    return database.read(
        lambda connection: tuple(
            QueueDepth(BlockKey(row[0], row[1], row[2]), row[3], int(row[4]), row[5])
            for row in connection.execute(query)
        )
    )


def density(database: IndexDatabase, *, span: int) -> Density:
    """Count the blocks that readers have to open. `span`: width of a window, microseconds (0: one window)."""
    window = BLOCKS.c.min_time // span if span else BLOCKS.c.shard
    groups = (
        select(func.count().label("blocks"))
        .where(BLOCKS.c.state == BlockState.LIVE)
        .group_by(BLOCKS.c.tenant, BLOCKS.c.shard, window)
        .subquery()
    )
    query = select(func.coalesce(func.sum(groups.c.blocks), 0), func.count())
    return database.read(lambda connection: Density(*(int(item) for item in connection.execute(query).one())))


# Blocks that cannot be compacted: quarantined with the reason, so that their siblings go on without them.
#
# A quarantined block is still live: readers get it, and find it as it is. It is in no queue and no plan until a user
# releases it (the cause is gone: it waits at the end of the queue) or drops it (its rows are given up: it is deleted
# after the grace like any other).

MESSAGE_LENGTH: Final = 2000


class Fault(NamedTuple):
    """The fault of a block: a reason for programs, a message for people."""

    reason: str
    message: str


class Quarantined(NamedTuple):
    """A block that was quarantined at `since`, by which job if by one."""

    block: Block
    fault: Fault
    job: str | None
    since: int


def quarantine(database: IndexDatabase, faults: Mapping[str, Fault], *, now: int, job: str | None = None) -> None:
    """Quarantine live blocks; of one that is already, the newer reason stands. A claim on it stays.

    Raises:
        UnknownBlockError: one of them is not live; none was quarantined.
    """

    def body(change: IndexChange) -> None:
        for block in faults:
            _need_live(change, block)
        set_aside(change, faults, job=job, now=now)

    database.change(body)


def set_aside(change: IndexChange, faults: Mapping[str, Fault], *, job: str | None, now: int) -> None:
    """The same as a part of a change; the blocks are live."""
    for block, fault in faults.items():
        change.connection.execute(delete(QUARANTINE).where(QUARANTINE.c.block == block))
        change.connection.execute(
            insert(QUARANTINE).values(
                block=block,
                reason=fault.reason.replace("\0", "?"),
                message=fault.message.replace("\0", "?")[:MESSAGE_LENGTH],
                job=job,
                since=now,
            )
        )
        change.connection.execute(
            update(BLOCKS).where(BLOCKS.c.id == block).values(arrival=None, enqueued_at=None, version=change.version)
        )


def release(database: IndexDatabase, block: str, *, now: int) -> bool:
    """The block waits again, at the end of the queue; False when it was not in quarantine (repeating is harmless).

    Raises:
        UnknownBlockError: it is not live.
    """

    def body(change: IndexChange) -> bool:
        _need_live(change, block)
        if not change.connection.execute(delete(QUARANTINE).where(QUARANTINE.c.block == block)).rowcount:
            return False
        (place,) = change.places(1)
        values = {"arrival": place, "enqueued_at": now, "version": change.version}
        change.connection.execute(update(BLOCKS).where(BLOCKS.c.id == block).values(values))
        return True

    return database.change(body)


def drop(database: IndexDatabase, block: str, *, clock: Callable[[], int]) -> bool:
    """Give up the rows of a quarantined block: readers no longer see it; False when it was dropped before. `clock`: see
    `bury`.

    Raises:
        UnknownBlockError: there is none, or it is live and not in quarantine: only what is broken is dropped by hand.
    """

    def body(change: IndexChange) -> bool:
        state = change.connection.execute(select(BLOCKS.c.state).where(BLOCKS.c.id == block)).scalar()
        if state is not None and state != BlockState.LIVE:
            return False
        known = change.connection.execute(select(QUARANTINE.c.block).where(QUARANTINE.c.block == block)).first()
        if known is None:
            raise UnknownBlockError(block, "unknown" if state is None else "not in quarantine")
        bury(change, [block], reason=TombstoneReason.DROPPED, job=None, now=clock())
        return True

    return database.change(body)


def quarantined(database: IndexDatabase) -> tuple[Quarantined, ...]:
    """All blocks in quarantine, the oldest first."""
    query = (
        select(*CONTENT, QUARANTINE.c.reason, QUARANTINE.c.message, QUARANTINE.c.job, QUARANTINE.c.since)
        .select_from(QUARANTINE.join(BLOCKS, BLOCKS.c.id == QUARANTINE.c.block))
        .order_by(QUARANTINE.c.since, QUARANTINE.c.block)
    )

    def body(connection: Connection) -> tuple[Quarantined, ...]:
        return tuple(
            Quarantined(block_of(row), Fault(row.reason, row.message), row.job, row.since)
            for row in connection.execute(query)
        )

    return database.read(body)


def _need_live(change: IndexChange, block: str) -> None:
    state = change.connection.execute(select(BLOCKS.c.state).where(BLOCKS.c.id == block)).scalar()
    if state != BlockState.LIVE:
        raise UnknownBlockError(block, state or "unknown")
