"""Blocks that are no longer live: deleted after the grace, forgotten only when the deletion was confirmed.

Invariants: a tombstone stands from the change that ended the block until `confirm`; it is due when the grace has passed
since then, whatever else goes on; one that cannot be deleted does not keep others waiting (`failed` puts it off),
except those that may be made of it. What was deleted is remembered for a while, so that a late registration of it stays
without effect.

What may be made of it: an output is of a higher level than its sources, of the same tenant and shard, and ended in a
later change than they did. It is due only when no such source stands before it. So an object that is gone proves that
all it was made of is gone, which is what an index rebuilt from the objects relies on (`rebuild`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from compaction.blocks.index.engine import IndexChange, IndexDatabase
from compaction.blocks.index.rows import chunks
from compaction.blocks.index.tables import BLOCKS, HEAD, QUARANTINE, TOMBSTONES, BlockState, TombstoneReason

BATCH: Final = 1000
"""As many keys as one request to S3 deletes."""
FIRST_PAUSE: Final = 30_000_000
LONGEST_PAUSE: Final = 3_600_000_000
"""Microseconds after which a failed deletion is tried again; doubled each time, up to an hour."""
ERROR_LENGTH: Final = 500


class BlockTombstone(NamedTuple):
    """A block that waits for its deletion since `since`. `attempts`: how often that failed, `error`: how, the last
    time.
    """

    block: str
    path: str
    tenant: str
    bytes: int
    reason: TombstoneReason
    job: str | None
    since: int
    attempts: int
    error: str | None


class TombstoneSummary(NamedTuple):
    """What waits for deletion: how many, their bytes, since when the oldest does; `failing`: that failed before."""

    blocks: int
    bytes: int
    oldest: int | None
    failing: int


_COLUMNS: Final = (
    TOMBSTONES.c.block, BLOCKS.c.path, BLOCKS.c.tenant, BLOCKS.c.bytes, TOMBSTONES.c.reason, TOMBSTONES.c.job,
    TOMBSTONES.c.since, TOMBSTONES.c.attempts, TOMBSTONES.c.error,
)  # fmt: skip
_JOINED: Final = TOMBSTONES.join(BLOCKS, BLOCKS.c.id == TOMBSTONES.c.block)
_KEY: Final = (BLOCKS.c.tenant, BLOCKS.c.shard, BLOCKS.c.level)
_FIRST: Final = select(*_KEY, func.min(BLOCKS.c.ended).label("ended")).select_from(_JOINED).group_by(*_KEY).cte()
"""The first change that buried one of those that stand, for each key."""
_HELD: Final = (
    select(_FIRST.c.ended)
    .where(
        _FIRST.c.tenant == BLOCKS.c.tenant,
        _FIRST.c.shard == BLOCKS.c.shard,
        _FIRST.c.level < BLOCKS.c.level,
        _FIRST.c.ended < BLOCKS.c.ended,
    )
    .correlate(BLOCKS)
    .exists()
)
"""Something that this block may be made of still stands."""
_REPLACED: Final = (
    select(BLOCKS.c.id, BLOCKS.c.ended)
    .select_from(_JOINED)
    .where(TOMBSTONES.c.reason == TombstoneReason.REPLACED.value)
)
_MADE: Final = (
    select(BLOCKS.c.id, BLOCKS.c.path, BLOCKS.c.bytes, BLOCKS.c.added, TOMBSTONES.c.reason)
    .select_from(BLOCKS.outerjoin(TOMBSTONES, BLOCKS.c.id == TOMBSTONES.c.block))
    .where(BLOCKS.c.state != BlockState.DELETED)
)


def bury(change: IndexChange, ids: Sequence[str], *, reason: TombstoneReason, job: str | None, now: int) -> None:
    """These live blocks are live no more: out of the queue, out of quarantine and of any job, waiting for deletion."""
    for part in chunks(ids):
        change.connection.execute(
            update(BLOCKS)
            .where(BLOCKS.c.id.in_(part))
            .values(
                state=BlockState.TOMBSTONED.value,
                arrival=None,
                enqueued_at=None,
                job=None,
                version=change.version,
                changed_at=now,
                ended=change.version,
            )
        )
        change.connection.execute(delete(QUARANTINE).where(QUARANTINE.c.block.in_(part)))
        rows = [
            {"block": block, "reason": reason.value, "job": job, "since": now, "not_before": now, "attempts": 0}
            for block in part
        ]
        change.connection.execute(insert(TOMBSTONES), rows)


def due(database: IndexDatabase, *, now: int, grace: int, limit: int = BATCH) -> tuple[BlockTombstone, ...]:
    """The next tombstones whose grace (microseconds) has passed, the oldest first. They are handed out again until they
    are confirmed or failed; deleting an object twice does no harm.
    """
    query = (
        select(*_COLUMNS)
        .select_from(_JOINED)
        .where(TOMBSTONES.c.since <= now - grace, TOMBSTONES.c.not_before <= now, ~_HELD)
        .order_by(TOMBSTONES.c.since, TOMBSTONES.c.block)
        .limit(limit)
    )
    return database.read(lambda connection: tuple(_tombstone(row) for row in connection.execute(query)))


class Successor(NamedTuple):
    """A block that a replaced one was made into. `standing`: it waits for its own deletion, as `reason` says."""

    block: str
    path: str
    bytes: int
    reason: TombstoneReason | None


def successors(database: IndexDatabase, blocks: Sequence[str]) -> dict[str, tuple[Successor, ...]]:
    """The outputs of those of `blocks` that were replaced, without the outputs that are deleted already.

    A commit is one change: it ends its sources and adds its outputs.
    """

    def body(connection: Connection) -> dict[str, tuple[Successor, ...]]:
        found: dict[str, tuple[Successor, ...]] = {}
        for part in chunks(blocks):
            ended = {row.id: row.ended for row in connection.execute(_REPLACED.where(BLOCKS.c.id.in_(part)))}
            if not ended:
                continue
            # No block was touched before it was added: the index over `version` leaves only what is younger.
            recent = BLOCKS.c.version >= min(ended.values())
            rows = connection.execute(_MADE.where(recent, BLOCKS.c.added.in_(set(ended.values())))).all()
            made: dict[int, list[Successor]] = {}
            for row in rows:
                reason = None if row.reason is None else TombstoneReason(row.reason)
                made.setdefault(row.added, []).append(Successor(row.id, row.path, row.bytes, reason))
            found |= {block: tuple(made.get(version, ())) for block, version in ended.items()}
        return found

    return database.read(body)


def standing(database: IndexDatabase, *, limit: int = BATCH) -> tuple[BlockTombstone, ...]:
    """What waits for its deletion, due or not, the oldest first."""
    query = select(*_COLUMNS).select_from(_JOINED).order_by(TOMBSTONES.c.since, TOMBSTONES.c.block).limit(limit)
    return database.read(lambda connection: tuple(_tombstone(row) for row in connection.execute(query)))


def _tombstone(row: Any) -> BlockTombstone:
    return BlockTombstone(*row)._replace(reason=TombstoneReason(row.reason))


def confirm(database: IndexDatabase, ids: Sequence[str], *, now: int) -> int:
    """The objects of these tombstones are gone; returns how many stood. Repeating is harmless."""

    def body(change: IndexChange) -> int:
        count = 0
        for part in chunks(ids):
            standing = select(TOMBSTONES.c.block).where(TOMBSTONES.c.block.in_(part))
            buried = list(change.connection.execute(standing).scalars())
            change.connection.execute(delete(TOMBSTONES).where(TOMBSTONES.c.block.in_(buried)))
            change.connection.execute(
                update(BLOCKS)
                .where(BLOCKS.c.id.in_(buried))
                .values(state=BlockState.DELETED.value, version=change.version, changed_at=now)
            )
            count += len(buried)
        return count

    return database.change(body) if ids else 0


def failed(database: IndexDatabase, errors: Mapping[str, str], *, now: int) -> None:
    """The objects of these tombstones could not be deleted: they are tried again later, each time later."""

    def body(change: IndexChange) -> None:
        for block, error in errors.items():
            standing = select(TOMBSTONES.c.attempts).where(TOMBSTONES.c.block == block)
            attempts = change.connection.execute(standing).scalar()
            if attempts is None:
                continue
            pause = min(FIRST_PAUSE << min(attempts, 20), LONGEST_PAUSE)
            change.connection.execute(
                update(TOMBSTONES)
                .where(TOMBSTONES.c.block == block)
                .values(attempts=attempts + 1, not_before=now + pause, error=error.replace("\0", "?")[:ERROR_LENGTH])
            )

    if errors:
        database.change(body)


def put_off(database: IndexDatabase, *, now: int, grace: int, limit: int = BATCH) -> dict[str, str]:
    """Blocks whose grace has passed, and whose deletion has failed and is tried again later, with the reason."""
    late = (TOMBSTONES.c.since <= now - grace) & (TOMBSTONES.c.not_before > now) & (TOMBSTONES.c.attempts > 0)
    query = select(TOMBSTONES.c.block, TOMBSTONES.c.error).where(late).order_by(TOMBSTONES.c.since).limit(limit)
    return database.read(lambda connection: {row.block: row.error or "" for row in connection.execute(query)})


def next_due(database: IndexDatabase, *, grace: int) -> int | None:
    """When the next tombstone is due, epoch microseconds; None when nothing waits for its deletion. Those that wait for
    another one do not count: they are due at once when it is confirmed.
    """
    later = func.max if database.engine.dialect.name == "sqlite" else func.greatest
    moment = func.min(later(TOMBSTONES.c.since + grace, TOMBSTONES.c.not_before))
    query = select(moment).select_from(_JOINED).where(~_HELD)
    return database.read(lambda connection: connection.execute(query).scalar())


def summary(database: IndexDatabase) -> TombstoneSummary:
    """What waits for deletion altogether."""
    failing = func.count().filter(TOMBSTONES.c.attempts > 0)
    query = select(func.count(), func.sum(BLOCKS.c.bytes), func.min(TOMBSTONES.c.since), failing).select_from(_JOINED)

    def body(connection: Any) -> TombstoneSummary:
        row = connection.execute(query).one()
        return TombstoneSummary(row[0], int(row[1] or 0), row[2], row[3])

    return database.read(body)


def forget_blocks(database: IndexDatabase, *, before: int, limit: int = BATCH) -> int:
    """Forget blocks whose deletion was confirmed before a time; returns how many. From then on a registration of one of
    them would be that of a new block: keep them for longer than any writer repeats itself.
    """

    def body(change: IndexChange) -> int:
        old = (BLOCKS.c.state == BlockState.DELETED) & (BLOCKS.c.changed_at < before)
        rows = change.connection.execute(select(BLOCKS.c.id, BLOCKS.c.version).where(old).limit(limit)).all()
        if not rows:
            return 0
        newest = max(row.version for row in rows)
        change.connection.execute(update(HEAD).where(HEAD.c.forgotten < newest).values(forgotten=newest))
        for part in chunks([row.id for row in rows]):
            change.connection.execute(delete(BLOCKS).where(BLOCKS.c.id.in_(part)))
        return len(rows)

    return database.change(body)
