"""Blocks enter the index: registered and in the queue, or neither.

Invariants: an id stands for one content for ever; a repeated registration changes nothing, also when the block was
replaced or deleted in the meantime; an object that is being collected as an orphan does not become a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select

from compaction.blocks.errors import BlockConflictError
from compaction.blocks.index.engine import IndexChange, IndexDatabase
from compaction.blocks.index.rows import CONTENT, block_of, checked, chunks, difference, row_of
from compaction.blocks.index.schemas import add_schemas_of
from compaction.blocks.index.tables import BLOCKS, CONDEMNED, BlockState
from compaction.blocks.model import Block


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
