"""Blocks that cannot be compacted: quarantined with the reason, so that their siblings go on without them.

A quarantined block is still live: readers get it, and find it as it is. It is in no queue and no plan until a user
releases it (the cause is gone: it waits at the end of the queue) or drops it (its rows are given up: it is deleted
after the grace like any other).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from compaction.blocks.errors import UnknownBlockError
from compaction.blocks.index.engine import IndexChange, IndexDatabase
from compaction.blocks.index.rows import CONTENT, block_of
from compaction.blocks.index.tables import BLOCKS, QUARANTINE, BlockState, TombstoneReason
from compaction.blocks.index.tombstones import bury
from compaction.blocks.model import Block

MESSAGE_LENGTH: Final = 2000


class Fault(NamedTuple):
    """What is wrong with a block: a reason for programs, a message for people."""

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


def drop(database: IndexDatabase, block: str, *, now: int) -> bool:
    """Give up the rows of a quarantined block: readers no longer see it; False when it was dropped before.

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
        bury(change, [block], reason=TombstoneReason.DROPPED, job=None, now=now)
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
