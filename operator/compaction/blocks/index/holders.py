"""Processes that claim jobs without a cluster, and when each of them gave its last sign of life.

In a cluster a job's Lease says whether a worker runs it. A local run (`compactor blocks compact`, `compactor run`)
has no Lease: it writes here who it is, and renews that from a thread of its own for as long as it lives. Silence is
measured by the clock of the database, so that machines whose clocks differ agree; a clock that jumps costs work, never
data, because what a taken-over holder commits is refused by its token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from compaction.blocks.index.engine import IndexChange, IndexDatabase
from compaction.blocks.index.tables import HOLDERS, JOBS, IndexJobState
from compaction.storage.processes import Holder

_MICROSECONDS: Final = {
    "sqlite": literal_column("CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)", BigInteger),
    "postgresql": cast(func.extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger),
}
"""Epoch microseconds by the clock of the database."""


@dataclass(frozen=True, slots=True)
class HolderRecord:
    """A holder and for how many microseconds it has given no sign of life, by the clock of the database."""

    holder: Holder
    silent: int

    @property
    def is_silent(self) -> bool:
        """Its lease is over."""
        return self.silent > self.holder.lease


def sign_in(change: IndexChange, holder: Holder) -> None:
    """The holder is alive: part of the change that gives it a claim."""
    values = {
        "host": holder.host,
        "place": holder.place,
        "pid": holder.pid,
        "started": holder.started,
        "lease": holder.lease,
        "renewed_at": _now(change.connection),
    }
    mine = update(HOLDERS).where(HOLDERS.c.holder == holder.id)
    if not change.connection.execute(mine.values(values)).rowcount:
        change.connection.execute(insert(HOLDERS).values(holder=holder.id, **values))


def renew(database: IndexDatabase, holder: str) -> None:
    """A sign of life. One that has never claimed anything needs none. Raises DatabaseError."""

    def body(connection: Connection) -> None:
        mine = update(HOLDERS).where(HOLDERS.c.holder == holder)
        connection.execute(mine.values(renewed_at=_now(connection)))

    database.write(body)


def sign_out(database: IndexDatabase, holder: str) -> None:
    """The holder has ended; while it still has claims, it is remembered. Raises as `renew`."""
    claiming = select(JOBS.c.holder).where(JOBS.c.state == IndexJobState.CLAIMED, JOBS.c.holder == holder)
    mine = (HOLDERS.c.holder == holder) & ~claiming.exists()
    database.write(lambda connection: connection.execute(delete(HOLDERS).where(mine)))


def silence(connection: Connection) -> ColumnElement[Any]:
    """The column `silent` of a query that joins the holders."""
    return (_now(connection) - HOLDERS.c.renewed_at).label("silent")


def record_of(row: Row[Any]) -> HolderRecord | None:
    """The holder of a row that was joined with the holders; None for one without."""
    if row.pid is None:
        return None
    return HolderRecord(Holder(row.holder, row.host, row.place, row.pid, row.started, row.lease), row.silent)


def forget_holders(change: IndexChange, *, before: int) -> None:
    """Forget those that were last seen before a time (epoch microseconds) and have no claim."""
    claiming = select(JOBS.c.holder).where(JOBS.c.state == IndexJobState.CLAIMED, JOBS.c.holder.is_not(None))
    old = (HOLDERS.c.renewed_at < before) & HOLDERS.c.holder.not_in(claiming)
    change.connection.execute(delete(HOLDERS).where(old))


def _now(connection: Connection) -> ColumnElement[Any]:
    return _MICROSECONDS[connection.dialect.name]
