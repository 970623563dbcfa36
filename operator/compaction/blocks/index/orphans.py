"""Objects that no block refers to: outputs of attempts that never committed, uploads that were never registered.

An object that the index does not know today may be registered or committed tomorrow, and the object deleted in between.
So it is condemned first, in a change that finds it unknown: from then on no block can refer to it. Then it is deleted,
then that is confirmed. The record is kept for a while after that: a result claimed before the deletion may have found
the object while it was still there, and is refused; one claimed later has uploaded it again, and is accepted.

Who deletes compares the identity of the index (`schema.ensure_schema`) with the store's before: the wrong index knows
nothing, and everything would be an orphan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select, update

from compaction.blocks.index.engine import IndexChange, IndexDatabase
from compaction.blocks.index.rows import chunks
from compaction.blocks.index.tables import BLOCKS, CONDEMNED, JOBS, BlockState, IndexJobState

BATCH: Final = 1000


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
