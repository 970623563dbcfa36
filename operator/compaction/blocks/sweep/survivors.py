"""Before the objects of replaced blocks are deleted: do the objects of their outputs still exist?

Between a commit and the end of the grace anybody may have acted on the objects: a lifecycle rule, a person, a bucket
that was restored to an earlier day, which has the sources again and not what was made of them. The index knows nothing
of that. So an object goes only while every block that took its place is in the store with its size; one that was
replaced in turn may be missing if those that took its own place are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from compaction.blocks.index.engine import IndexDatabase
from compaction.blocks.index.tables import TombstoneReason
from compaction.blocks.index.tombstones import BlockTombstone, Successor, successors
from compaction.storage.errors import ObjectError, ObjectMissingError
from compaction.storage.objects.store import ObjectStorage

HEADS_AT_ONCE: Final = 8


def without_survivors(objects: ObjectStorage, index: IndexDatabase, batch: Sequence[BlockTombstone]) -> dict[str, str]:
    """Those of `batch` that must not be deleted, by id: which block that took their place is missing, or what the store
    said when it was asked. Raises DatabaseError.
    """
    wanted = [one.block for one in batch if one.reason is TombstoneReason.REPLACED]
    made: dict[str, tuple[Successor, ...]] = {}
    missing: dict[str, str] = {}
    while wanted:
        found = successors(index, wanted)
        asked = {one for ones in found.values() for one in ones if one.block not in missing}
        missing |= _missing(objects, asked)
        made |= found
        # A missing one that waits for its own deletion is made up for by its own successors.
        wanted = [one.block for one in asked if one.reason is TombstoneReason.REPLACED and missing.get(one.block)]
    return {one.block: why for one in batch if (why := _why(one.block, made, missing))}


def _why(block: str, made: Mapping[str, tuple[Successor, ...]], missing: Mapping[str, str]) -> str:
    """Why a replaced block is still needed; empty when it is not."""
    for one in made.get(block, ()):
        said = missing.get(one.block, "")
        covered = bool(made.get(one.block)) and not _why(one.block, made, missing)
        # A successor that expired or was dropped took its rows with it on purpose: its sources must not keep them.
        ended = one.reason in (TombstoneReason.EXPIRED, TombstoneReason.DROPPED)
        if said and not covered and not ended:
            return f"it is kept: block {one.block}, which took its place, {said}"
    return ""


def _missing(objects: ObjectStorage, asked: Iterable[Successor]) -> dict[str, str]:
    """What is wrong with each object, by block; empty text for one that is there."""

    def look(one: Successor) -> str:
        try:
            size = objects.head(one.path).size
        except ObjectMissingError:
            return f"is not in the store ({one.path})"
        except ObjectError as error:
            return f"cannot be read: {error.reason}"
        return "" if size == one.bytes else f"has {size} bytes instead of {one.bytes} ({one.path})"

    ones = sorted(asked)
    if not ones:
        return {}
    with ThreadPoolExecutor(min(HEADS_AT_ONCE, len(ones))) as pool:
        return {one.block: said for one, said in zip(ones, pool.map(look, ones), strict=True)}
