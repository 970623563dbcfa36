"""Deletes what a block store no longer needs, after the grace, and only where the objects of the outputs exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from compaction.blocks.index.claims import forget_jobs
from compaction.blocks.index.tables import IndexDatabase, TombstoneReason
from compaction.blocks.index.tombstones import (
    BATCH,
    BlockTombstone,
    Expired,
    RetentionPeriods,
    Successor,
    confirm,
    due,
    expire,
    failed,
    forget_blocks,
    forget_gone,
    next_due,
    put_off,
    successors,
)
from compaction.blocks.model import SECOND
from compaction.blocks.owners import FolderOwners
from compaction.storage.errors import ObjectError, ObjectMissingError
from compaction.storage.objects.store import ObjectStorage

# Before the objects of replaced blocks are deleted: do the objects of their outputs still exist?
#
# Between a commit and the end of the grace anybody may have acted on the objects: a lifecycle rule, a person, a
# bucket that was restored to an earlier day, which has the sources again and not what was made of them. The index
# knows nothing of that. So an object goes only while every block that took its place is in the store with its size;
# one that was replaced in turn may be missing if those that took its own place are not.

HEADS_AT_ONCE: Final = 8


def without_survivors(objects: ObjectStorage, index: IndexDatabase, batch: Sequence[BlockTombstone]) -> dict[str, str]:
    """Those of `batch` that must not be deleted, by id: which block that took their place is missing, or what the store
    said when it was asked. Raises DatabaseError.
    """
    wanted = [item.block for item in batch if item.reason is TombstoneReason.REPLACED]
    made: dict[str, tuple[Successor, ...]] = {}
    missing: dict[str, str] = {}
    while wanted:
        found = successors(index, wanted)
        asked = {item for ones in found.values() for item in ones if item.block not in missing}
        missing |= _missing(objects, asked)
        made |= found
        # A missing one that waits for its own deletion is made up for by its own successors.
        wanted = [item.block for item in asked if item.reason is TombstoneReason.REPLACED and missing.get(item.block)]
    return {item.block: why for item in batch if (why := _why(item.block, made, missing))}


def _why(block: str, made: Mapping[str, tuple[Successor, ...]], missing: Mapping[str, str]) -> str:
    """Return the reason for which a replaced block is still needed; empty when it is not."""
    for item in made.get(block, ()):
        said = missing.get(item.block, "")
        covered = bool(made.get(item.block)) and not _why(item.block, made, missing)
        # A successor that expired or was dropped took its rows with it on purpose: its sources must not keep them.
        ended = item.reason in (TombstoneReason.EXPIRED, TombstoneReason.DROPPED)
        if said and not covered and not ended:
            return f"it is kept: block {item.block}, which took its place, {said}"
    return ""


def _missing(objects: ObjectStorage, asked: Iterable[Successor]) -> dict[str, str]:
    """Return the fault of each object, by block; empty text for one that is there."""

    def look(successor: Successor) -> str:
        try:
            size = objects.head(successor.path).size
        except ObjectMissingError:
            return f"is not in the store ({successor.path})"
        except ObjectError as error:
            # Not known to be there: the source is kept until the store answers.
            return f"cannot be read: {error.reason}"
        return "" if size == successor.bytes else f"has {size} bytes instead of {successor.bytes} ({successor.path})"

    ones = sorted(asked)
    if not ones:
        return {}
    with ThreadPoolExecutor(min(HEADS_AT_ONCE, len(ones))) as pool:
        return {item.block: said for item, said in zip(ones, pool.map(look, ones), strict=True)}


# The deletion of what a block store no longer needs: replaced and expired blocks after the grace, and what is
# remembered of them.
#
# Invariants:
#
# * An object is deleted only while its tombstone stands, and the tombstone is dropped only after the store has said
#   that the object is gone. A crash in between means that the object is deleted once more.
# * The object of a replaced block is deleted only while what it was made into is in the store (`survivors`).
# * Nothing is deleted from a folder that shows signs of a table format or of another store (`owners`), whenever they
#   came there: a folder may have been made a table since its files were registered.
# * What cannot be deleted is tried again later, each time later, and keeps nothing waiting but what may be made of it
#   (`index.tombstones`).
# * Nothing here waits for anything else: no jobs, no writers, no plans.
#
# Objects that the index does not know are another matter: `orphan_collector`. Times are epoch microseconds, and
# given.

AT_ONCE: Final = 10_000
"""Blocks that one call deletes or expires at most: it is to end within minutes, and is simply called again."""
REMEMBERED: Final = 7 * 86_400 * SECOND
"""How long deleted blocks, closed jobs and collected orphans are remembered: longer than anybody repeats a call."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a sweep: `blocks` deleted and their `bytes`; `failed`: ids of those that could not be, now or by an
    earlier sweep, and why. `next`: the time at which something is due again, None when nothing waits. `more`: the limit
    ended it, call again at once.
    """

    blocks: int
    bytes: int
    failed: Mapping[str, str]
    next: int | None
    more: bool


def sweep(objects: ObjectStorage, index: IndexDatabase, *, now: int, grace: int, limit: int = AT_ONCE) -> Cleaned:
    """Delete the objects of blocks that ended at least `grace` ago; of `limit` blocks at most. Repeating is harmless,
    and so are several sweepers at once.

    Raises DatabaseUnavailableError, DatabaseError. Failures of the object store are recorded and returned.
    """
    count = size = 0
    problems: dict[str, str] = {}
    owners, silent = FolderOwners(objects), False
    while count + len(problems) < limit:
        batch = due(index, now=now, grace=grace, limit=min(BATCH, limit - count - len(problems)))
        if not batch:
            break
        kept = without_survivors(objects, index, batch)
        try:
            signs = owners.of(item.path for item in batch)
        except ObjectError as error:
            kept |= {item.block: f"it is kept: {error}" for item in batch}
            signs, silent = {}, True
        kept |= {item.block: f"it is kept: it belongs to {signs[item.path]}" for item in batch if item.path in signs}
        free = [item for item in batch if item.block not in kept]
        refused = {path: error.reason for path, error in objects.delete(item.path for item in free)}
        gone = [item for item in free if item.path not in refused]
        confirm(index, [item.block for item in gone], now=now)
        kept |= {item.block: refused[item.path] for item in free if item.path in refused}
        failed(index, kept, now=now)
        problems |= kept
        count += len(gone)
        size += sum(item.bytes for item in gone)
        if silent or (free and not gone):
            # The store refuses everything: whatever else is due would fail the same, and be put off for nothing. What
            # is kept for its own sake says nothing of the others.
            break
    more = count + len(problems) >= limit
    # What an earlier sweep could not delete is not deleted now either, until its time has come.
    problems |= put_off(index, now=now, grace=grace)
    return Cleaned(count, size, problems, next_due(index, grace=grace), more=more)


def expire_all(
    index: IndexDatabase, rule: RetentionPeriods, *, clock: Callable[[], int], limit: int = AT_ONCE
) -> tuple[Expired, ...]:
    """End what is older than its tenant keeps it, up to `limit` blocks, the oldest data first; `sweep` deletes it after
    the grace. What comes back are the blocks of this call; those of a call that died are in the tombstones.
    """
    ended: list[Expired] = []
    while len(ended) < limit:
        batch = expire(index, rule, clock=clock, limit=min(BATCH, limit - len(ended)))
        if not batch:
            break
        ended += batch
    return tuple(ended)


class Forgotten(NamedTuple):
    """The numbers of blocks, jobs and objects that are no longer remembered."""

    blocks: int
    jobs: int
    objects: int


def housekeeping(index: IndexDatabase, *, now: int, keep: int = REMEMBERED) -> Forgotten:
    """Forget what ended for good more than `keep` ago: deleted blocks, committed and retired jobs, collected orphans.

    Only the memory of it goes. What still waits for its deletion is never forgotten, nor a job that may still commit.
    """
    before = now - keep
    counts = [0, 0]
    for number, forget in enumerate((forget_blocks, forget_jobs)):
        while found := forget(index, before=before, limit=BATCH):
            counts[number] += found
    return Forgotten(counts[0], counts[1], forget_gone(index, before=before))
