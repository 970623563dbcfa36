"""Retention: blocks all of whose rows are older than their tenant keeps them.

A block expires when both its newest row and the block itself (the time in its ULID) are older than the tenant's period;
strictly older, and the block by a grace more: late rows of a writer and blocks that were just registered stay a while.
A block with a single row that is young enough stays whole. No period, or 0, means for ever.

A claim does not protect a block: the job's late result is refused (`replacing`), so what has expired does not come
back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, or_, select

from compaction.blocks.index.engine import IndexChange, IndexDatabase
from compaction.blocks.index.tables import BLOCKS, BlockState, TombstoneReason
from compaction.blocks.index.tombstones import bury

BATCH: Final = 1000


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


def expire(database: IndexDatabase, rule: RetentionPeriods, *, now: int, limit: int = BATCH) -> tuple[Expired, ...]:
    """Bury up to `limit` expired blocks, the oldest data first; repeat until nothing comes back.

    After an answer that was lost, those of the lost one are missing here: they are in the tombstones all the same.
    """
    query = _query(rule, now, limit)
    if query is None:
        return ()
    # A look costs nothing when nothing has expired, a change would make everybody wait.
    if not database.read(lambda connection: connection.execute(query.limit(1)).first()):
        return ()

    def body(change: IndexChange) -> tuple[Expired, ...]:
        found = tuple(Expired._make(row) for row in change.connection.execute(query))
        bury(change, [one.block for one in found], reason=TombstoneReason.EXPIRED, job=None, now=now)
        return found

    return database.change(body)


def would_expire(
    database: IndexDatabase, rule: RetentionPeriods, *, now: int, limit: int = BATCH
) -> tuple[Expired, ...]:
    """What `expire` would bury now, up to `limit` blocks. Nothing is changed (a dry run)."""
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
