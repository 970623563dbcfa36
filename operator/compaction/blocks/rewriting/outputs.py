"""The outputs of a merge: as blocks for the index, and gone when nothing refers to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from compaction.blocks.errors import BlockStoreError, UnsuitableBlockError
from compaction.blocks.index.orphans import condemn, confirm_gone
from compaction.blocks.model import Block
from compaction.blocks.paths import parse_block_path
from compaction.blocks.rewriting.merging import BlockMerge
from compaction.blocks.rewriting.task import MergedPart
from compaction.blocks.schema.classes import schema_text
from compaction.blocks.schema.ids import schema_id
from compaction.blocks.store import BlockStore
from compaction.storage.errors import StorageError

log = structlog.get_logger(__name__)


def blocks_of(store: BlockStore, work: BlockMerge, parts: Sequence[MergedPart]) -> tuple[Block, ...]:
    """The outputs as they are registered: described by their own footers, as anybody would who finds them.

    Raises BlockFormatError, ObjectError.
    """
    return tuple(_block(store, work, part) for part in parts if part.bytes)


def _block(store: BlockStore, work: BlockMerge, part: MergedPart) -> Block:
    said, place = work.said, parse_block_path(part.output)
    assert said.level is not None
    assert place is not None
    try:
        return store.describe(
            part.output, tenant=place.tenant, shard=place.shard, level=said.level, time_column=said.time_column or ""
        )
    except UnsuitableBlockError:
        if said.time_column is not None:
            raise
    # Which column is the time was told when the sources were registered, and is not known to anybody now.
    return Block(
        id=place.id,
        tenant=place.tenant,
        shard=place.shard,
        level=said.level,
        path=part.output,
        min_time=min(source.min_time for source in work.sources),
        max_time=max(source.max_time for source in work.sources),
        rows=part.result.written.rows,
        bytes=part.bytes,
        fingerprint=part.result.written,
        sort_key=work.settings.sort_key,
        schema_id=schema_id(part.result.schema),
        schema=schema_text(part.result.schema),
    )


def discard(store: BlockStore, paths: Iterable[str]) -> None:
    """Delete uploads of an attempt, those that it has committed after all (its answer was lost) excepted.

    The index decides: what it condemns is no block and never will be, so a commit on its way is refused. No other
    attempt has objects of these names: their names derive from the attempt. What does not succeed is left to the orphan
    collector.
    """
    wanted = sorted(set(paths))
    if not wanted:
        return
    try:
        doomed = condemn(store.index, wanted, now=store.now())
        failed = dict(store.objects.delete(doomed))
        confirm_gone(store.index, [path for path in doomed if path not in failed], now=store.now())
    except (BlockStoreError, StorageError) as error:
        log.warning("outputs that were not committed stay until orphans are collected", error=str(error), paths=wanted)
