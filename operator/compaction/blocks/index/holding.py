"""What an attempt may work on: its claim as the index has it now.

A merge checks its claim first, so that work whose result could not be committed does not start. It proves nothing about
later: the commit checks everything again.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from compaction.blocks.errors import ReplaceRefusedError
from compaction.blocks.index.claims import Claimed
from compaction.blocks.index.engine import IndexDatabase
from compaction.blocks.index.refusals import IndexRefusal
from compaction.blocks.index.rows import CONTENT, block_of, chunks
from compaction.blocks.index.tables import BLOCKS, JOB_SOURCES, JOBS, BlockState, IndexJobState
from compaction.blocks.model import Block
from compaction.errors import StaleTokenError


def held_claim(database: IndexDatabase, *, job: str, token: int) -> Claimed:
    """The claim of the job, with its sources by id, when it is that of `token` and all sources are still live.

    Raises:
        StaleTokenError: another attempt claimed the job since.
        ReplaceRefusedError: JOB_UNKNOWN, JOB_RETIRED, JOB_COMMITTED or SOURCE_GONE, as a commit would be.
        DatabaseUnavailableError, DatabaseError
    """
    return database.read(lambda connection: _held(connection, database.name, job, token))


def _held(connection: Connection, index: str, job: str, token: int) -> Claimed:
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
    return Claimed(job, token, tuple(blocks[name] for name in sorted(blocks)), row.output_level)
