"""Changes of the index that add blocks: a registration, or a commit in which outputs replace their sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, delete, insert, or_, select, update

from compaction.blocks.errors import BlockConflictError, ReplaceRefusedError
from compaction.blocks.index.claims import IndexRefusal
from compaction.blocks.index.queued import Fault, set_aside
from compaction.blocks.index.rows import CONTENT, add_schemas_of, block_of, checked, chunks, difference, row_of
from compaction.blocks.index.tables import (
    BLOCKS,
    CONDEMNED,
    JOB_SOURCES,
    JOBS,
    TOMBSTONES,
    BlockState,
    IndexChange,
    IndexDatabase,
    IndexJobState,
    TombstoneReason,
)
from compaction.blocks.index.tombstones import bury
from compaction.blocks.model import Block, RowFingerprint
from compaction.errors import StaleTokenError

# Blocks enter the index: registered and in the queue, or neither.
#
# Invariants: an id stands for one content for ever; a repeated registration changes nothing, also when the block was
# replaced or deleted in the meantime; an object that is being collected as an orphan does not become a block.


@dataclass(frozen=True, slots=True)
class Registered:
    """`new`: ids that are live and queued since this call; `known`: those that were registered before, whatever became
    of them. After an answer that was lost on the way, new ones come back as known.
    """

    new: tuple[str, ...]
    known: tuple[str, ...]


class KnownPath(NamedTuple):
    """The block whose object lies at a path, in whatever state; `changed_at`: when the index last changed it."""

    block: Block
    state: BlockState
    changed_at: int


def known_paths(database: IndexDatabase, paths: Sequence[str]) -> dict[str, KnownPath]:
    """Those of the paths that the index knows. Raises DatabaseUnavailableError, DatabaseError."""
    query = select(*CONTENT, BLOCKS.c.state, BLOCKS.c.changed_at)

    def body(connection: Connection) -> dict[str, KnownPath]:
        rows = [row for part in chunks(paths) for row in connection.execute(query.where(BLOCKS.c.path.in_(part)))]
        return {row.path: KnownPath(block_of(row), BlockState(row.state), row.changed_at) for row in rows}

    return database.read(body)


def register(database: IndexDatabase, blocks: Sequence[Block], *, now: int) -> Registered:
    """Make the blocks live and put them at the end of the queue, in their order; all of them, or none.

    Their objects must be complete before: from here on readers see them.

    Raises:
        InvalidBlockError: a block that cannot be one.
        BlockConflictError: an id or path that is known with another content, or an object that is being deleted.
        DatabaseUnavailableError, DatabaseError
    """
    by_id = checked(blocks)
    if not by_id:
        return Registered((), ())
    return database.change(lambda change: _register(change, by_id, now))


def _register(change: IndexChange, by_id: Mapping[str, Block], now: int) -> Registered:
    known = known_blocks(change, by_id)
    for block_id, present in known.items():
        if present != by_id[block_id]:
            what = difference(by_id[block_id], present)
            raise BlockConflictError(block_id, f"it is registered with another content ({what}): give it a new id")
    new = [block for block_id, block in by_id.items() if block_id not in known]
    refuse_used_paths(change, new)
    _refuse_condemned(change, new)
    insert_live(change, new, now)
    return Registered(tuple(block.id for block in new), tuple(known))


def known_blocks(change: IndexChange, ids: Mapping[str, object] | Sequence[str]) -> dict[str, Block]:
    """Those of the ids that the index knows, in whatever state."""
    found: dict[str, Block] = {}
    for part in chunks(tuple(ids)):
        rows = change.connection.execute(select(*CONTENT).where(BLOCKS.c.id.in_(part)))
        found.update((row.id, block_of(row)) for row in rows)
    return {block_id: found[block_id] for block_id in ids if block_id in found}


def refuse_used_paths(change: IndexChange, blocks: Sequence[Block]) -> None:
    """BlockConflictError when the path of a new block is that of another one."""
    wanted = {block.path: block.id for block in blocks}
    for part in chunks(tuple(wanted)):
        used = change.connection.execute(select(BLOCKS.c.path, BLOCKS.c.id).where(BLOCKS.c.path.in_(part))).first()
        if used is not None:
            raise BlockConflictError(wanted[used.path], f"its path {used.path} is that of block {used.id}")


def _refuse_condemned(change: IndexChange, blocks: Sequence[Block]) -> None:
    wanted = {block.path: block.id for block in blocks}
    for part in chunks(tuple(wanted)):
        path = change.connection.execute(select(CONDEMNED.c.path).where(CONDEMNED.c.path.in_(part))).scalar()
        if path is not None:
            raise BlockConflictError(
                wanted[path],
                f"{path} was collected as an orphan, because it was never registered: upload it under a new id",
            )


def insert_live(change: IndexChange, blocks: Sequence[Block], now: int) -> None:
    """New rows, live, at the end of the queue, and the schemas of those whose footers were read."""
    if not blocks:
        return
    values: list[dict[str, Any]] = [
        row_of(block)
        | {
            "state": BlockState.LIVE.value,
            "arrival": place,
            "enqueued_at": now,
            "job": None,
            "version": change.version,
            "changed_at": now,
            "added": change.version,
        }
        for block, place in zip(blocks, change.places(len(blocks)), strict=True)
    ]
    change.connection.execute(insert(BLOCKS), values)
    add_schemas_of(change, blocks)


# The commit: a job's sources become its outputs in one change, or nothing happens.
#
# Every condition is checked in the change that relies on it, so none of them can cease to hold before it commits:
# each source is live and belongs to this job, claimed with this token; the sources are those that were claimed; the
# outputs are new and of the job's tenant, shard and level; no row was lost or invented, by the fingerprints in the
# index tell.
#
# A repetition of what was committed (the answer got lost) returns the receipt again. Everything else that comes late
# is refused with the reason: retention plus a late success must not bring rows back.

_NO_ROWS: Final = RowFingerprint()


@dataclass(frozen=True, slots=True)
class BlockReplacement:
    """A result: the `outputs` hold the rows of `sources`, except `dropped` (duplicates, counted and hashed).

    `skipped`: claimed sources that could not be read; they go into quarantine. Together with `sources` they are exactly
    what was claimed. `receipt`: any text, kept as the proof.
    """

    job: str
    token: int
    sources: tuple[str, ...]
    outputs: tuple[Block, ...]
    receipt: str
    skipped: Mapping[str, Fault] = field(default_factory=lambda: MappingProxyType({}))
    dropped: RowFingerprint = _NO_ROWS

    def digest(self) -> str:
        """By which a repetition is known; the receipt is not part of it: it may tell other seconds."""
        outputs = [row_of(block) for block in sorted(self.outputs, key=lambda block: block.id)]
        parts = [self.job, self.token, sorted(self.sources), outputs, sorted(self.skipped), str(self.dropped)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ReplacedBlocks:
    """The proof. `repeated`: it had been committed before. `version`: who has seen it sees the outputs."""

    receipt: str
    version: int
    repeated: bool


def replace(database: IndexDatabase, result: BlockReplacement, *, clock: Callable[[], int]) -> ReplacedBlocks:
    """Commit a result. The objects of the outputs are complete before, uploaded since the claim. `clock`: see `bury`.

    Raises:
        StaleTokenError: another attempt claimed the job since.
        ReplaceRefusedError: see `IndexRefusal`; nothing was changed.
        InvalidBlockError: an output that cannot be a block; nothing was changed.
        DatabaseUnavailableError: it may have happened; repeat it with the same arguments.
        DatabaseError
    """
    outputs = checked(result.outputs)
    digest = result.digest()
    return database.change(lambda change: _replace(database, change, result, outputs, digest, clock()))


def _replace(
    database: IndexDatabase,
    change: IndexChange,
    result: BlockReplacement,
    outputs: Mapping[str, Block],
    digest: str,
    now: int,
) -> ReplacedBlocks:
    job = change.connection.execute(select(JOBS).where(JOBS.c.job == result.job)).one_or_none()
    # The answer was lost and the worker repeats. Asked first: every check below would refuse what has already happened.
    if job is not None and job.state == IndexJobState.COMMITTED and job.arguments == digest:
        return ReplacedBlocks(job.receipt, change.version, repeated=True)
    job = _check_attempt(database, job, result)
    sources = _check_sources(change, result)
    _check_outputs(change, job, result, outputs)
    _check_content(result, sources)
    bury(change, sorted(result.sources), reason=TombstoneReason.REPLACED, job=result.job, now=now)
    _release_skipped(change, result, now)
    insert_live(change, [outputs[block_id] for block_id in sorted(outputs)], now)
    change.connection.execute(
        update(JOBS)
        .where(JOBS.c.job == result.job)
        .values(state=IndexJobState.COMMITTED.value, arguments=digest, receipt=result.receipt, changed_at=now)
    )
    return ReplacedBlocks(result.receipt, change.version, repeated=False)


def _check_attempt(database: IndexDatabase, job: Row[Any] | None, result: BlockReplacement) -> Row[Any]:
    """The job's row, when this attempt is the one that may commit."""
    if job is None:
        raise _refused(result, IndexRefusal.JOB_UNKNOWN, "nothing is claimed for it")
    if job.state == IndexJobState.COMMITTED:
        raise _refused(result, IndexRefusal.JOB_COMMITTED, f"another result was committed, with token {job.token}")
    if job.state == IndexJobState.RETIRED:
        raise _refused(result, IndexRefusal.JOB_RETIRED, "it was given up")
    if job.token != result.token:
        raise StaleTokenError(database.name, result.job, result.token, job.token)
    return job


def _check_sources(change: IndexChange, result: BlockReplacement) -> tuple[Block, ...]:
    """The blocks that are replaced, when all of them still are what was claimed."""
    given = [*result.sources, *result.skipped]
    claimed = set(
        change.connection.execute(select(JOB_SOURCES.c.block).where(JOB_SOURCES.c.job == result.job)).scalars()
    )
    if len(given) != len(set(given)) or set(given) != claimed:
        odd = sorted(set(given) ^ claimed)
        detail = f"block {odd[0]} was {'claimed and left out' if odd[0] in claimed else 'never claimed'}" if odd else ""
        raise _refused(result, IndexRefusal.NOT_THE_SOURCES, detail or "it names a source twice")
    blocks = []
    for part in chunks(sorted(result.sources)):
        query = (
            select(*CONTENT, BLOCKS.c.state, BLOCKS.c.job, TOMBSTONES.c.reason)
            .select_from(BLOCKS.outerjoin(TOMBSTONES, TOMBSTONES.c.block == BLOCKS.c.id))
            .where(BLOCKS.c.id.in_(part))
        )
        rows = {row.id: row for row in change.connection.execute(query)}
        for block_id in part:
            row = rows.get(block_id)
            if row is None or row.state != BlockState.LIVE or row.job != result.job:
                why = "forgotten" if row is None else row.reason or (row.state if row.job is None else "not its own")
                raise _refused(result, IndexRefusal.SOURCE_GONE, f"source {block_id} is {why}")
            blocks.append(block_of(row))
    return tuple(blocks)


def _check_outputs(change: IndexChange, job: Row[Any], result: BlockReplacement, outputs: Mapping[str, Block]) -> None:
    for block in outputs.values():
        if block.key != (job.tenant, job.shard, job.output_level):
            wanted = f"{job.tenant}, shard {job.shard}, level {job.output_level}"
            raise _refused(
                result, IndexRefusal.OUTPUT_MISPLACED, f"output {block.id} is of {block.key}, not of {wanted}"
            )
    if known := known_blocks(change, outputs):
        raise _refused(result, IndexRefusal.OUTPUT_KNOWN, f"output {next(iter(known))} is known already")
    try:
        refuse_used_paths(change, tuple(outputs.values()))
    except BlockConflictError as error:
        raise _refused(result, IndexRefusal.OUTPUT_KNOWN, str(error)) from error
    for part in chunks([block.path for block in outputs.values()]):
        # Deleted before the claim is fine: what was uploaded since is another object under the same name.
        since = or_(CONDEMNED.c.gone_version.is_(None), CONDEMNED.c.gone_version > job.claim_version)
        mine = CONDEMNED.c.path.in_(part)
        path = change.connection.execute(select(CONDEMNED.c.path).where(mine, since)).scalar()
        if path is not None:
            detail = f"{path} is, or was since its claim, being deleted as an orphan"
            raise _refused(result, IndexRefusal.OUTPUT_CONDEMNED, detail)
        change.connection.execute(delete(CONDEMNED).where(mine))


def _check_content(result: BlockReplacement, sources: Sequence[Block]) -> None:
    before = reduce(add, (block.fingerprint for block in sources), _NO_ROWS)
    after = reduce(add, (block.fingerprint for block in result.outputs), result.dropped)
    # The fingerprints of the sources are those of the index, recorded before this job began, not what the worker read.
    if before != after:
        detail = f"its sources hold {before}, its outputs and dropped duplicates {after}"
        raise _refused(result, IndexRefusal.CONTENT_DIFFERS, detail)


def _release_skipped(change: IndexChange, result: BlockReplacement, now: int) -> None:
    """Skipped sources belong to no job any more, and those that are still live go into quarantine."""
    live: dict[str, Fault] = {}
    for part in chunks(sorted(result.skipped)):
        query = select(BLOCKS.c.id).where(BLOCKS.c.id.in_(part), BLOCKS.c.state == BlockState.LIVE)
        live.update((block, result.skipped[block]) for block in change.connection.execute(query).scalars())
        change.connection.execute(update(BLOCKS).where(BLOCKS.c.id.in_(part)).values(job=None, version=change.version))
    set_aside(change, live, job=result.job, now=now)


def _refused(result: BlockReplacement, reason: IndexRefusal, detail: str) -> ReplaceRefusedError:
    return ReplaceRefusedError(result.job, reason.value, detail)
