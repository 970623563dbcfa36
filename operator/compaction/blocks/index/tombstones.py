"""Objects that the index lets go: replaced and expired blocks after their grace, and orphans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, or_, select, update

from compaction.blocks.index.rows import chunks
from compaction.blocks.index.tables import (
    BLOCKS,
    CONDEMNED,
    HEAD,
    JOBS,
    QUARANTINE,
    TOMBSTONES,
    BlockState,
    IndexChange,
    IndexDatabase,
    IndexJobState,
    TombstoneReason,
)

# Blocks that are no longer live: deleted after the grace, forgotten only when the deletion was confirmed.
#
# Invariants: a tombstone stands from the change that ended the block until `confirm`; it is due when the grace has
# passed since then, whatever else goes on; one that cannot be deleted does not keep others waiting (`failed` puts it
# off), except those that may be made of it. What was deleted is remembered for a while, so that a late registration
# of it stays without effect.
#
# What may be made of it: an output is of a higher level than its sources, of the same tenant and shard, and ended in
# a later change than they did. It is due only when no such source stands before it. So an object that is gone proves
# that all it was made of is gone, which is what an index rebuilt from the objects relies on (`rebuild`).

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
    """The tombstones that wait for deletion: their number, bytes, and the time of the oldest; `failing`: the number of
    those whose deletion failed before.
    """

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
    """These live blocks are live no more: out of the queue, out of quarantine and of any job, waiting for deletion.

    Their grace begins `now`, which is read inside the change, from the clock (epoch microseconds) that the caller was
    given: a change may wait for its turn, or for its database, and until it has it readers take snapshots of these.
    """
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
    """Return the tombstones that wait for deletion, due or not, the oldest first."""
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
    """Return the time at which the next tombstone is due, epoch microseconds; None when none waits for its deletion.
    Tombstones that wait for another one do not count: they are due at once when it is confirmed.
    """
    later = func.max if database.engine.dialect.name == "sqlite" else func.greatest
    moment = func.min(later(TOMBSTONES.c.since + grace, TOMBSTONES.c.not_before))
    query = select(moment).select_from(_JOINED).where(~_HELD)
    return database.read(lambda connection: connection.execute(query).scalar())


def summary(database: IndexDatabase) -> TombstoneSummary:
    """Return the totals of all tombstones that wait for deletion."""
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


# Retention: blocks all of whose rows are older than their tenant keeps them.
#
# A block expires when both its newest row and the block itself (the time in its ULID) are older than the tenant's
# period; strictly older, and the block by a grace more: late rows of a writer and blocks that were just registered
# stay a while. A block with a single row that is young enough stays whole. No period, or 0, means for ever.
#
# A claim does not protect a block: the job's late result is refused (`registering.replace`), so what has expired does
# not come back.


@dataclass(frozen=True, slots=True)
class RetentionPeriods:
    """Periods in microseconds: `default` for all tenants that `tenants` does not name. `grace`: see the module."""

    default: int = 0
    tenants: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    grace: int = 0


class Expired(NamedTuple):
    """A block that expired, and the job that it was taken from, if it was claimed."""

    block: str
    tenant: str
    bytes: int
    job: str | None


def expire(
    database: IndexDatabase, rule: RetentionPeriods, *, clock: Callable[[], int], limit: int = BATCH
) -> tuple[Expired, ...]:
    """Bury up to `limit` expired blocks, the oldest data first; repeat until nothing comes back. `clock`: see `bury`.

    After an answer that was lost, those of the lost one are missing here: they are in the tombstones all the same.
    """
    query = _query(rule, clock(), limit)
    if query is None:
        return ()
    # A look costs nothing when nothing has expired, a change would make everybody wait.
    if not database.read(lambda connection: connection.execute(query.limit(1)).first()):
        return ()

    def body(change: IndexChange) -> tuple[Expired, ...]:
        found = tuple(Expired._make(row) for row in change.connection.execute(query))
        bury(change, [item.block for item in found], reason=TombstoneReason.EXPIRED, job=None, now=clock())
        return found

    return database.change(body)


def would_expire(
    database: IndexDatabase, rule: RetentionPeriods, *, now: int, limit: int = BATCH
) -> tuple[Expired, ...]:
    """Return the blocks that `expire` would bury now, up to `limit`. Nothing is changed (a dry run)."""
    query = _query(rule, now, limit)
    if query is None:
        return ()
    return database.read(lambda connection: tuple(Expired._make(row) for row in connection.execute(query)))


def _query(rule: RetentionPeriods, now: int, limit: int) -> Select[Any] | None:
    """The blocks that have expired, as the fields of `Expired`; None when everything is kept for ever."""
    conditions = _conditions(rule, now)
    if not conditions:
        return None
    return (
        select(BLOCKS.c.id, BLOCKS.c.tenant, BLOCKS.c.bytes, BLOCKS.c.job)
        .where(BLOCKS.c.state == BlockState.LIVE, or_(*conditions))
        .order_by(BLOCKS.c.max_time, BLOCKS.c.id)
        .limit(limit)
    )


def _conditions(rule: RetentionPeriods, now: int) -> Sequence[ColumnElement[bool]]:
    """One for each tenant with a period of its own, and one for all others."""
    conditions: list[ColumnElement[bool]] = []
    for tenant, period in rule.tenants.items():
        if period > 0:
            conditions.append((BLOCKS.c.tenant == tenant) & _older(rule, period, now))
    if rule.default > 0:
        others = BLOCKS.c.tenant.not_in(tuple(rule.tenants))
        conditions.append(others & _older(rule, rule.default, now))
    return conditions


def _older(rule: RetentionPeriods, period: int, now: int) -> ColumnElement[bool]:
    return (BLOCKS.c.max_time < now - period) & (BLOCKS.c.created < now - period - rule.grace)


# Objects that no block refers to: outputs of attempts that never committed, uploads that were never registered.
#
# An object that the index does not know today may be registered or committed tomorrow, and the object deleted in
# between. So it is condemned first, in a change that finds it unknown: from then on no block can refer to it. Then it
# is deleted, then that is confirmed. The record is kept for a while after that: a result claimed before the deletion
# may have found the object while it was still there, and is refused; one claimed later has uploaded it again, and is
# accepted.
#
# Who deletes compares the identity of the index (`schema.ensure_schema`) with the store's before: the wrong index
# knows nothing, and everything would be an orphan.


def unknown_paths(database: IndexDatabase, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of the paths that belong to no block, live or waiting for its deletion. Nothing is changed (dry run)."""
    known = database.read(lambda connection: _known(connection, paths))
    return tuple(path for path in paths if path not in known)


@contextmanager
def known_paths(database: IndexDatabase) -> Iterator[Iterator[str]]:
    """All paths that belong to blocks, in order: for a comparison with a listing of the store, which is ordered too."""
    with database.snapshot() as connection:
        query = select(BLOCKS.c.path).where(BLOCKS.c.state != BlockState.DELETED).order_by(BLOCKS.c.path)
        yield iter(connection.execution_options(stream_results=True, yield_per=BATCH).execute(query).scalars())


def _known(connection: Connection, paths: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for part in chunks(tuple(paths)):
        query = select(BLOCKS.c.path).where(BLOCKS.c.path.in_(part), BLOCKS.c.state != BlockState.DELETED)
        known.update(connection.execute(query).scalars())
    return known


def condemn(database: IndexDatabase, paths: Sequence[str], *, now: int) -> tuple[str, ...]:
    """Those of the paths that may be deleted now: no block refers to them, and none will. Repeating returns them again.

    The caller has seen that the objects are older than any upload takes until its registration.
    """
    wanted = tuple(dict.fromkeys(paths))

    def body(change: IndexChange) -> tuple[str, ...]:
        known = _known(change.connection, wanted)
        orphans = tuple(path for path in wanted if path not in known)
        for part in chunks(orphans):
            change.connection.execute(delete(CONDEMNED).where(CONDEMNED.c.path.in_(part)))
            change.connection.execute(insert(CONDEMNED), [{"path": path, "since": now} for path in part])
        return orphans

    return database.change(body) if wanted else ()


def condemned(database: IndexDatabase, *, limit: int = BATCH) -> tuple[str, ...]:
    """Paths that were condemned and whose deletion was never confirmed, the oldest first: to be deleted again."""
    query = (
        select(CONDEMNED.c.path)
        .where(CONDEMNED.c.gone_at.is_(None))
        .order_by(CONDEMNED.c.since, CONDEMNED.c.path)
        .limit(limit)
    )
    return database.read(lambda connection: tuple(connection.execute(query).scalars()))


def confirm_gone(database: IndexDatabase, paths: Sequence[str], *, now: int) -> None:
    """The condemned objects were deleted. Repeating is harmless."""

    def body(change: IndexChange) -> None:
        for part in chunks(paths):
            standing = CONDEMNED.c.path.in_(part) & CONDEMNED.c.gone_at.is_(None)
            values = {"gone_at": now, "gone_version": change.version}
            change.connection.execute(update(CONDEMNED).where(standing).values(values))

    if paths:
        database.change(body)


def forget_gone(database: IndexDatabase, *, before: int) -> int:
    """Forget deletions confirmed before a time, except those that an open claim is older than; returns how many."""

    def body(change: IndexChange) -> int:
        claims = select(func.min(JOBS.c.claim_version)).where(JOBS.c.state == IndexJobState.CLAIMED)
        oldest = change.connection.execute(claims).scalar()
        old = (CONDEMNED.c.gone_at < before) & (
            CONDEMNED.c.gone_version < (change.version if oldest is None else oldest)
        )
        return int(change.connection.execute(delete(CONDEMNED).where(old)).rowcount)

    return database.change(body)
