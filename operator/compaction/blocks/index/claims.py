"""Claims of jobs in the index: one open job for each block, one attempt for each job, and who holds it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
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

from compaction.blocks.errors import BlockClaimError, ReplaceRefusedError
from compaction.blocks.index.rows import CONTENT, MAX_INTEGER, MAX_LEVEL, block_of, chunks, text_problem
from compaction.blocks.index.tables import (
    BLOCKS,
    HEAD,
    HOLDERS,
    JOB_SOURCES,
    JOBS,
    QUARANTINE,
    BlockState,
    IndexChange,
    IndexDatabase,
    IndexJobState,
)
from compaction.blocks.model import SECOND, Block, BlockKey
from compaction.errors import StaleTokenError
from compaction.storage.opened import Holder, ThisProcess

# Reasons why the index refuses something for a job. Every refusal changes nothing.


class IndexRefusal(StrEnum):
    """The reason in `BlockClaimError` and `ReplaceRefusedError`. A stale token has an error of its own."""

    MALFORMED = "Malformed"
    """A job name, token, level or list of sources that no plan can have made."""
    JOB_UNKNOWN = "JobUnknown"
    """Nothing was claimed for the job, or so long ago that it is forgotten."""
    JOB_RETIRED = "JobRetired"
    """The job was given up: its sources may be in other jobs by now."""
    JOB_COMMITTED = "JobCommitted"
    """Another attempt, or another result of this one, was committed."""
    JOB_HELD = "JobHeld"
    """Another local process has claimed the job and was not taken over."""
    SOURCE_UNKNOWN = "SourceUnknown"
    SOURCE_GONE = "SourceGone"
    """Replaced, expired or dropped: a result made of it would bring deleted rows back."""
    SOURCE_CLAIMED = "SourceClaimed"
    """It belongs to another open job."""
    SOURCE_QUARANTINED = "SourceQuarantined"
    SOURCES_MIXED = "SourcesMixed"
    """Of more than one tenant, shard or level."""
    NOT_THE_SOURCES = "NotTheSources"
    """What was replaced and skipped is not what was claimed."""
    OUTPUT_MISPLACED = "OutputMisplaced"
    """Of another tenant, shard or level than the job's."""
    OUTPUT_KNOWN = "OutputKnown"
    """Its id or path is known already."""
    OUTPUT_CONDEMNED = "OutputCondemned"
    """Its object is, or was since the claim, being deleted as an orphan: claim again and upload it again."""
    CONTENT_DIFFERS = "ContentDiffers"
    """The rows of the outputs, and of the duplicates dropped, are not the rows of the sources."""


# Processes that claim jobs without a cluster, and when each of them gave its last sign of life.
#
# In a cluster a job's Lease says whether a worker runs it. A local run (`compactor blocks compact`, `compactor run`)
# has no Lease: it writes here who it is, and renews that from a thread of its own for as long as it lives. Silence is
# measured by the clock of the database, so that machines whose clocks differ agree; a clock that jumps costs work,
# never data, because what a taken-over holder commits is refused by its token.

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


# The right to replace blocks: one open job per block, one attempt per job.
#
# Invariants:
# * tokens of a job strictly increase, also over its retirement and after it was forgotten (`token_floor`);
# * only the newest claim of a job counts (`registering.replace` compares for equality), so two coordinators that hand
#   out the same token cannot both succeed: the second one's claim is refused;
# * a block belongs to a job from the claim until the job is committed or retired, or until the block is gone;
# * what a local process (`Holder`) has claimed, another one claims only after it was taken over (`retire`): two that
#   plan the same job do not fence each other off.

MOST_SOURCES: Final = 10_000
_HOLDER: Final = tuple(HOLDERS.c[name] for name in ("host", "place", "pid", "started", "lease"))


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """The blocks that an attempt may replace: `sources` by id, and the level that its outputs must have."""

    job: str
    token: int
    sources: tuple[Block, ...]
    output_level: int


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The record of a job in the index. `receipt`: of a committed job. `holder`: of one that a local process claims."""

    job: str
    state: IndexJobState
    token: int
    key: BlockKey
    output_level: int
    sources: tuple[str, ...]
    changed_at: int
    receipt: str | None
    holder: HolderRecord | None = None


def high_water(database: IndexDatabase, job: str) -> int:
    """The largest token that was ever accepted for the job; the next one must be larger."""
    return database.read(lambda connection: _high_water(connection, job))


def _high_water(connection: Connection, job: str) -> int:
    floor = int(connection.execute(select(HEAD.c.token_floor)).scalar_one())
    token = connection.execute(select(JOBS.c.token).where(JOBS.c.job == job)).scalar()
    return max(floor, token or 0)


def claim(
    database: IndexDatabase,
    *,
    job: str,
    token: int,
    sources: Sequence[str],
    now: int,
    output_level: int | None = None,
    holder: Holder | None = None,
) -> ClaimedJob:
    """From now on only `token` may commit for the job, and only these sources. `output_level` None: one above the
    highest of theirs. `holder`: the local process that claims it; None for a cluster.

    A job that was retired may be claimed again. An earlier claim of the same job is over, whatever it was for.

    Raises:
        StaleTokenError: not larger than every token accepted for the job before.
        BlockClaimError: see `IndexRefusal`.
        DatabaseUnavailableError, DatabaseError
    """
    wanted = tuple(sorted(sources))
    _check_form(job, token, wanted, output_level)
    # Its own claim, made by an answer that was lost, must not look like somebody else's.
    mark = secrets.token_hex(8)

    def body(change: IndexChange) -> ClaimedJob:
        before = change.connection.execute(select(JOBS).where(JOBS.c.job == job)).one_or_none()
        if before is not None and before.claim == mark:
            return ClaimedJob(job, token, _rows(change, wanted), before.output_level)
        _check_token(database, change, before, job, token)
        _check_holder(before, job, holder)
        blocks = _claimable(change, job, wanted)
        highest = max(block.level for block in blocks)
        level = highest + 1 if output_level is None else output_level
        if level <= highest:
            raise _refused(job, IndexRefusal.MALFORMED, f"outputs of level {level} from sources of level {highest}")
        key = BlockKey(blocks[0].tenant, blocks[0].shard, highest)
        row = _job_row(change, job, token, mark, key, level, now)
        if holder is not None:
            sign_in(change, holder)
        _store(change, before, row | {"holder": None if holder is None else holder.id}, wanted)
        return ClaimedJob(job, token, blocks, level)

    return database.change(body)


def _check_form(job: str, token: int, sources: tuple[str, ...], output_level: int | None) -> None:
    problem = text_problem(job)
    if problem:
        raise _refused(job, IndexRefusal.MALFORMED, f"its name {problem}")
    if not 1 <= token <= MAX_INTEGER:
        raise _refused(job, IndexRefusal.MALFORMED, f"a fencing token is an integer in 1..{MAX_INTEGER}, not {token}")
    if not 1 <= len(sources) <= MOST_SOURCES:
        raise _refused(job, IndexRefusal.MALFORMED, f"a job has 1 to {MOST_SOURCES} sources, not {len(sources)}")
    if len(set(sources)) != len(sources):
        raise _refused(job, IndexRefusal.MALFORMED, "it names a source twice")
    if output_level is not None and not 1 <= output_level <= MAX_LEVEL:
        raise _refused(job, IndexRefusal.MALFORMED, f"outputs cannot have level {output_level}")


def _check_token(database: IndexDatabase, change: IndexChange, before: Row[Any] | None, job: str, token: int) -> None:
    if before is not None and before.state == IndexJobState.COMMITTED:
        raise _refused(job, IndexRefusal.JOB_COMMITTED, f"it was committed with token {before.token}")
    largest = _high_water(change.connection, job)
    if token <= largest:
        raise StaleTokenError(database.name, job, token, largest)


def _check_holder(before: Row[Any] | None, job: str, holder: Holder | None) -> None:
    if before is None or before.state != IndexJobState.CLAIMED or holder is None or before.holder in (None, holder.id):
        return
    raise _refused(job, IndexRefusal.JOB_HELD, "another process claimed it first, and works on it")


def _rows(change: IndexChange, ids: Sequence[str]) -> tuple[Block, ...]:
    found: list[Row[Any]] = []
    for part in chunks(ids):
        found += change.connection.execute(select(*CONTENT).where(BLOCKS.c.id.in_(part)).order_by(BLOCKS.c.id)).all()
    return tuple(block_of(row) for row in found)


def _claimable(change: IndexChange, job: str, ids: Sequence[str]) -> tuple[Block, ...]:
    """The sources, when the job can have all of them."""
    rows: list[Any] = []
    for part in chunks(ids):
        query = (
            select(*CONTENT, BLOCKS.c.state, BLOCKS.c.job, QUARANTINE.c.reason)
            .select_from(BLOCKS.outerjoin(QUARANTINE, QUARANTINE.c.block == BLOCKS.c.id))
            .where(BLOCKS.c.id.in_(part))
            .order_by(BLOCKS.c.id)
        )
        rows += change.connection.execute(query).all()
    if missing := sorted(set(ids) - {row.id for row in rows}):
        raise _refused(
            job, IndexRefusal.SOURCE_UNKNOWN, f"no block {missing[0]} is known ({len(missing)} of its sources)"
        )
    for row in rows:
        if row.state != BlockState.LIVE:
            raise _refused(job, IndexRefusal.SOURCE_GONE, f"source {row.id} is {row.state}")
        # Quarantined since the plan was made. The job would fail on it, and the others of its batch with it.
        if row.reason is not None:
            raise _refused(job, IndexRefusal.SOURCE_QUARANTINED, f"source {row.id} is quarantined ({row.reason})")
        if row.job is not None and row.job != job:
            raise _refused(job, IndexRefusal.SOURCE_CLAIMED, f"source {row.id} belongs to job {row.job}")
    blocks = tuple(block_of(row) for row in rows)
    # Levels may differ: a block that found nobody to be merged with has climbed without being rewritten.
    if len(keys := sorted({(block.tenant, block.shard) for block in blocks})) > 1:
        raise _refused(job, IndexRefusal.SOURCES_MIXED, f"its sources are of {keys[0]} and of {keys[1]}")
    return blocks


def _job_row(
    change: IndexChange, job: str, token: int, mark: str, key: BlockKey, output_level: int, now: int
) -> dict[str, Any]:
    return {
        "job": job,
        "state": IndexJobState.CLAIMED.value,
        "token": token,
        "tenant": key.tenant,
        "shard": key.shard,
        "level": key.level,
        "output_level": output_level,
        "claim": mark,
        "claim_version": change.version,
        "changed_at": now,
    }


def _store(change: IndexChange, before: Row[Any] | None, row: dict[str, Any], sources: Sequence[str]) -> None:
    job = row["job"]
    if before is None:
        change.connection.execute(insert(JOBS).values(row))
    else:
        # An earlier attempt may have claimed other sources: those must be free before this claim takes its own.
        release(change, job)
        change.connection.execute(update(JOBS).where(JOBS.c.job == job).values(row))
        change.connection.execute(delete(JOB_SOURCES).where(JOB_SOURCES.c.job == job))
    change.connection.execute(insert(JOB_SOURCES), [{"job": job, "block": source} for source in sources])
    for part in chunks(sources):
        change.connection.execute(update(BLOCKS).where(BLOCKS.c.id.in_(part)).values(job=job, version=change.version))


def release(change: IndexChange, job: str) -> None:
    """The blocks of a job belong to none; they never left the queue."""
    change.connection.execute(update(BLOCKS).where(BLOCKS.c.job == job).values(job=None, version=change.version))


def retire(database: IndexDatabase, job: str, *, now: int, token: int | None = None, holder: str | None = None) -> bool:
    """Nothing may be committed for the job any more, until it is claimed again; its blocks are free for other jobs.
    Repeating is harmless, and so is retiring one that is unknown or committed. False: nothing was to be closed.

    `token`: only the claim with this token, `holder`: only one of this holder. Who was taken over and wakes up, or has
    seen a claim that is gone, never closes the claim of another.
    """
    mine = (JOBS.c.job == job) & (JOBS.c.state == IndexJobState.CLAIMED)
    if token is not None:
        mine &= JOBS.c.token == token
    if holder is not None:
        mine &= JOBS.c.holder == holder

    def body(change: IndexChange) -> bool:
        closing = update(JOBS).where(mine).values(state=IndexJobState.RETIRED.value, changed_at=now)
        closed = bool(change.connection.execute(closing).rowcount)
        if closed:
            release(change, job)
        return closed

    return database.change(body)


def job_record(database: IndexDatabase, job: str) -> JobRecord | None:
    """Return the record of a job, also its receipt: proof that it was committed, for a caller that lost the answer."""

    def body(connection: Connection) -> JobRecord | None:
        found = _records(connection, JOBS.c.job == job)
        return found[0] if found else None

    return database.read(body)


def open_jobs(database: IndexDatabase) -> tuple[JobRecord, ...]:
    """All jobs that hold a claim, by name: after a restart, those without a process are to be retired."""

    def body(connection: Connection) -> tuple[JobRecord, ...]:
        return _records(connection, JOBS.c.state == IndexJobState.CLAIMED)

    return database.read(body)


def _records(connection: Connection, which: ColumnElement[bool]) -> tuple[JobRecord, ...]:
    """Jobs by name with their sources, in two queries however many there are: each scan asks for all open ones."""
    joined = JOB_SOURCES.join(JOBS, JOBS.c.job == JOB_SOURCES.c.job)
    query = select(JOB_SOURCES.c.job, JOB_SOURCES.c.block).select_from(joined).where(which)
    sources: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(JOB_SOURCES.c.block)):
        sources.setdefault(row.job, []).append(row.block)
    return tuple(
        JobRecord(
            job=row.job,
            state=IndexJobState(row.state),
            token=row.token,
            key=BlockKey(row.tenant, row.shard, row.level),
            output_level=row.output_level,
            sources=tuple(sources.get(row.job, ())),
            changed_at=row.changed_at,
            receipt=row.receipt,
            holder=record_of(row),
        )
        for row in connection.execute(
            select(JOBS, *_HOLDER, silence(connection))
            .select_from(JOBS.outerjoin(HOLDERS, HOLDERS.c.holder == JOBS.c.holder))
            .where(which)
            .order_by(JOBS.c.job)
        )
    )


def forget_jobs(database: IndexDatabase, *, before: int, limit: int = 1000) -> int:
    """Forget jobs that were committed or retired before a time; returns how many. Their tokens stay in the floor, so no
    token is ever handed out twice; their receipts are gone. So are holders that were last seen before that time.
    """

    def body(change: IndexChange) -> int:
        forget_holders(change, before=before)
        old = (JOBS.c.state != IndexJobState.CLAIMED) & (JOBS.c.changed_at < before)
        rows = change.connection.execute(select(JOBS.c.job, JOBS.c.token).where(old).limit(limit)).all()
        if not rows:
            return 0
        largest = max(row.token for row in rows)
        change.connection.execute(update(HEAD).where(HEAD.c.token_floor < largest).values(token_floor=largest))
        for part in chunks([row.job for row in rows]):
            change.connection.execute(delete(JOB_SOURCES).where(JOB_SOURCES.c.job.in_(part)))
            change.connection.execute(delete(JOBS).where(JOBS.c.job.in_(part)))
        return len(rows)

    return database.change(body)


def _refused(job: str, reason: IndexRefusal, detail: str) -> BlockClaimError:
    return BlockClaimError(job, reason.value, detail)


# The claim that an attempt may work on, as the index has it now.
#
# A merge checks its claim first, so that work whose result could not be committed does not start. It proves nothing
# about later: the commit checks everything again.


def held_claim(database: IndexDatabase, *, job: str, token: int) -> ClaimedJob:
    """The claim of the job, with its sources by id, when it is that of `token` and all sources are still live.

    Raises:
        StaleTokenError: another attempt claimed the job since.
        ReplaceRefusedError: JOB_UNKNOWN, JOB_RETIRED, JOB_COMMITTED or SOURCE_GONE, as a commit would be.
        DatabaseUnavailableError, DatabaseError
    """
    return database.read(lambda connection: _held(connection, database.name, job, token))


def _held(connection: Connection, index: str, job: str, token: int) -> ClaimedJob:
    row = connection.execute(select(JOBS).where(JOBS.c.job == job)).one_or_none()
    if row is None:
        raise ReplaceRefusedError(job, IndexRefusal.JOB_UNKNOWN.value, "nothing is claimed for it")
    if row.token != token:
        raise StaleTokenError(index, job, token, row.token)
    if row.state != IndexJobState.CLAIMED:
        reason = IndexRefusal.JOB_COMMITTED if row.state == IndexJobState.COMMITTED else IndexRefusal.JOB_RETIRED
        raise ReplaceRefusedError(job, reason.value, f"it was {row.state} with this token")
    wanted = list(connection.execute(select(JOB_SOURCES.c.block).where(JOB_SOURCES.c.job == job)).scalars())
    blocks: dict[str, Block] = {}
    for part in chunks(wanted):
        mine = BLOCKS.c.id.in_(part) & (BLOCKS.c.state == BlockState.LIVE) & (BLOCKS.c.job == job)
        blocks.update((found.id, block_of(found)) for found in connection.execute(select(*CONTENT).where(mine)))
    if gone := sorted(set(wanted) - blocks.keys()):
        raise ReplaceRefusedError(job, IndexRefusal.SOURCE_GONE.value, f"source {gone[0]} is live no more")
    return ClaimedJob(job, token, tuple(blocks[name] for name in sorted(blocks)), row.output_level)


# The evidence on this machine for whether a process works on an open job.
#
# A holder on this machine is judged by its process (pid and start time: a pid alone is used again); any other one by
# its silence. Claims of a cluster have no holder: its coordinator judges them by their Leases, and local runs leave
# them alone. A process that is taken over although it lives loses only its work: its commit is refused.


STRAY_CLAIM: Final = 3600 * SECOND
"""Microseconds after which the claim of a job that gives no sign of life is taken for a leftover."""


class Sign(StrEnum):
    """The state of the process that claimed a job. UNKNOWN: no local process did, so a cluster has it, or had it."""

    ALIVE = "Alive"
    DEAD = "Dead"
    SILENT = "Silent"
    UNKNOWN = "Unknown"

    @property
    def is_gone(self) -> bool:
        """No process works on the job, and a local run takes it over."""
        return self in (Sign.DEAD, Sign.SILENT)


def sign_of(holder: HolderRecord | None, here: ThisProcess | None) -> Sign:
    """Return the state of a holder, seen from this process (None: from a place without processes of its own)."""
    if holder is None:
        return Sign.UNKNOWN
    claimer = holder.holder
    if here is not None and claimer.id == here.holder.id:
        return Sign.ALIVE  # however long the index could not be reached
    same_place = here is not None and bool(claimer.place) and claimer.place == here.holder.place
    if same_place and here is not None and here.has_ended(claimer.pid, claimer.started):
        return Sign.DEAD
    return Sign.SILENT if holder.is_silent else Sign.ALIVE


def is_parked(job: JobRecord, sign: Sign, *, now: int) -> bool:
    """No process seems to work on this open job; its blocks wait until it is released. `now`: microseconds."""
    return sign.is_gone or (sign is Sign.UNKNOWN and now - job.changed_at > STRAY_CLAIM)
