"""The index made anew from the objects, when the database is lost.

What is promised: after it, readers see exactly the rows they saw before the loss, whenever the objects are as a crash
at any moment left them (`lineage` says why). What no object tells, and so is not as it was:

* Blocks that had expired or were dropped, and whose objects are still there, are back: until retention runs again, or
  for good.
* What a writer uploaded and did not register is there now. If it uploaded the same rows again, they are there twice.
* Duplicates that a compaction had removed are back while the sources are still there, and removed by the next one.
* Quarantine, jobs and receipts are forgotten; a block that cannot be read is in no index, and named in the report.
* A writer's block that does not say its level is of level 0.

Everything that works on the store is stopped before: a writer or worker that goes on with the old index adds and
deletes blocks that the new one does not know of. Tokens begin above all that were ever given, so that no attempt from
before can commit.

Memory: about 2 KiB for each block of the largest shard, and 8 bytes for each of its ancestors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sqlalchemy import update

from compaction.exceptions import (
    BlockFormatError,
    InvalidBlockError,
    ObjectChangedError,
    ObjectMissingError,
    ObjectTruncatedError,
)
from compaction.stores.blocks.describe import describe_footer, said_of
from compaction.stores.blocks.footer import Footer, read_footer
from compaction.stores.blocks.identity import begin_anew, finish_anew
from compaction.stores.blocks.index.engine import IndexDatabase
from compaction.stores.blocks.index.registering import register
from compaction.stores.blocks.index.rows import chunks
from compaction.stores.blocks.index.tables import HEAD
from compaction.stores.blocks.lineage import Made, Relative, decide
from compaction.stores.blocks.metadata import BlockMetadata
from compaction.stores.blocks.model import Block
from compaction.stores.blocks.objects import Objects
from compaction.stores.blocks.paths import BlockPlace, parse_block_path, shard_prefix

READ_AT_ONCE: Final = 8
PAGE: Final = 256
"""Blocks between two reports of progress, and in one change of the index."""
UNREADABLE: Final = (BlockFormatError, ObjectChangedError, ObjectTruncatedError)
"""What is wrong with one object; anything else is wrong with the store."""
EXAMPLES: Final = 100
SECOND: Final = 1_000_000


class RebuildProgress(NamedTuple):
    """`read` of `of` blocks; `tenant` and `shard` are those being read."""

    read: int
    of: int
    tenant: str
    shard: int


@dataclass(slots=True)
class Rebuilt:
    """What came of it. `blocks` with their `rows` and `bytes` are live. `replaced`: objects of blocks that were
    replaced. `unused`: outputs that were never committed, or whose sources are taken instead. Both are orphans now, and
    collected as such, not before a week has passed. `unreadable`: path and reason; nothing is known of their rows.
    `doubts`: what could not be told for certain. `foreign`: how many objects are no blocks by their path, and the first
    of them (`examples`).
    """

    blocks: int = 0
    rows: int = 0
    bytes: int = 0
    replaced: int = 0
    unused: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    foreign: int = 0
    examples: list[str] = field(default_factory=list)


class _Found(NamedTuple):
    """A block that is there. `block` None: all of its rows would have to be read for it."""

    path: str
    place: BlockPlace
    relative: Relative
    block: Block | None


def rebuild_index(
    objects: Objects,
    index: IndexDatabase,
    *,
    now: int,
    time_column: str = "",
    report: Callable[[RebuildProgress], None] = lambda progress: None,
) -> Rebuilt:
    """Fill an empty index from the objects, and bind the store to it. Repeating after a crash begins again.

    `now`: epoch microseconds. `time_column`: for blocks that do not name theirs and have several (see `describe`).

    Raises:
        IndexMismatchError: the index is not empty; one that exists is never replaced.
        ObjectError, IndexUnavailableError, BlockIndexError: begin again.
    """
    word = begin_anew(objects, index)
    _raise_tokens(index, now)
    result = Rebuilt()
    shards = _shards(objects, result)
    total = sum(shards.values())
    read = 0
    for (tenant, shard), _ in sorted(shards.items()):
        found: list[_Found] = []
        for part in _pages(objects, tenant, shard):
            found += _read(objects, part, time_column, result)
            read += len(part)
            report(RebuildProgress(read, total, tenant, shard))
        _enter(objects, index, found, time_column, now, result)
    finish_anew(objects, index, word)
    return result


def _raise_tokens(index: IndexDatabase, now: int) -> None:
    """Tokens count assignments and grow by one: seconds since 1970 are above all of them, also those of an index that
    was made anew before, and far below what a Lease can hold.
    """
    floor = now // SECOND
    index.change(
        lambda change: change.connection.execute(
            update(HEAD).where(HEAD.c.token_floor < floor).values(token_floor=floor)
        )
    )


def _shards(objects: Objects, result: Rebuilt) -> Counter[tuple[str, int]]:
    """How many blocks there are of each tenant and shard; counts what is none."""
    shards: Counter[tuple[str, int]] = Counter()
    for info in objects.list():
        place = parse_block_path(info.path)
        if place is not None:
            shards[place.tenant, place.shard] += 1
        elif not info.path.startswith("_compaction/"):
            result.foreign += 1
            if len(result.examples) < EXAMPLES:
                result.examples.append(info.path)
    return shards


def _pages(objects: Objects, tenant: str, shard: int) -> Iterator[list[tuple[str, BlockPlace]]]:
    paths = [info.path for info in objects.list(shard_prefix(tenant, shard))]
    blocks = [(path, place) for path in sorted(paths) if (place := parse_block_path(path)) is not None]
    for part in chunks(blocks, PAGE):
        yield list(part)


def _describe(objects: Objects, footer: Footer, said: BlockMetadata, place: BlockPlace, time_column: str) -> Block:
    return describe_footer(
        objects,
        footer,
        said,
        tenant=place.tenant,
        shard=place.shard,
        level=said.level or 0,
        time_column=said.time_column or time_column,
    )


def _read(
    objects: Objects, blocks: Sequence[tuple[str, BlockPlace]], time_column: str, result: Rebuilt
) -> list[_Found]:
    """What the footers say, a few at a time."""

    def one(item: tuple[str, BlockPlace]) -> _Found | tuple[str, str] | None:
        path, place = item
        try:
            footer = read_footer(objects, path)
            said = said_of(footer)
            relative = _relative(place, said)
            known = said.fingerprint is not None
            return _Found(
                path, place, relative, _describe(objects, footer, said, place, time_column) if known else None
            )
        except ObjectMissingError:
            return None
        except UNREADABLE as error:
            return path, error.reason

    found: list[_Found] = []
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        for answer in pool.map(one, blocks):
            if isinstance(answer, _Found):
                found.append(answer)
            elif answer is not None:
                result.unreadable[answer[0]] = answer[1]
    return found


def _relative(place: BlockPlace, said: BlockMetadata) -> Relative:
    # Sources are of a lower level; and whoever names itself tells nothing that can be followed.
    ours = said.sources and said.level and said.id == place.id and place.id not in (*said.sources, *said.ancestors)
    if not ours:
        return Relative(place.id, said.level or 0, None)
    made = Made(
        job=said.job or "",
        token=said.token or 0,
        part=said.part,
        parts=said.parts,
        sources=said.sources,
        outputs=said.outputs if len(said.outputs) == said.parts else (),
        ancestors=tuple(map(hash, said.ancestors)),
    )
    return Relative(place.id, said.level or 0, made)


def _enter(
    objects: Objects, index: IndexDatabase, found: Sequence[_Found], time_column: str, now: int, result: Rebuilt
) -> None:
    """Register what lives of a shard, in the order in which it was made."""
    verdict = decide(one.relative for one in found)
    result.replaced += len(verdict.dead)
    result.unused += len(verdict.unused)
    result.doubts += verdict.doubts
    live = [one for one in found if one.relative.id in verdict.live]
    for part in chunks(live, PAGE):
        blocks = [one.block for one in part if one.block is not None]
        # Blocks of writers that count no fingerprint: only now is it known that their rows have to be read.
        rest = [(one.path, one.place) for one in part if one.block is None]
        blocks += _describe_whole(objects, rest, time_column, result)
        for block in _register(index, sorted(blocks, key=lambda one: one.id), now, result):
            result.blocks += 1
            result.rows += block.rows
            result.bytes += block.bytes


def _describe_whole(
    objects: Objects, blocks: Sequence[tuple[str, BlockPlace]], time_column: str, result: Rebuilt
) -> list[Block]:
    def one(item: tuple[str, BlockPlace]) -> Block | tuple[str, str] | None:
        path, place = item
        try:
            footer = read_footer(objects, path)
            return _describe(objects, footer, said_of(footer), place, time_column)
        except ObjectMissingError:
            return None
        except UNREADABLE as error:
            return path, error.reason

    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        answers = list(pool.map(one, blocks))
    result.unreadable |= dict(answer for answer in answers if isinstance(answer, tuple))
    return [answer for answer in answers if isinstance(answer, Block)]


def _register(index: IndexDatabase, blocks: Sequence[Block], now: int, result: Rebuilt) -> Sequence[Block]:
    """Those that the index took: all, as a rule; else one by one, to name those that it refused."""
    try:
        register(index, blocks, now=now)
        return blocks
    except InvalidBlockError as error:
        if len(blocks) == 1:
            result.unreadable[blocks[0].path] = error.reason
            return ()
    return [one for block in blocks for one in _register(index, [block], now, result)]
