"""The index rebuilt from the objects of a store, when the database is lost."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import update

from compaction.blocks.errors import BlockFormatError, BlockStoreError, InvalidBlockError
from compaction.blocks.format.footer import BlockFooter, read_footer
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.index.registering import register
from compaction.blocks.index.rows import chunks
from compaction.blocks.index.tables import HEAD, IndexDatabase
from compaction.blocks.model import SECOND, Block, BlockPlace, parse_block_path, shard_prefix
from compaction.blocks.owners import FolderOwners
from compaction.blocks.rebuild.lineage import Made, Relative, decide
from compaction.blocks.registration.describe import describe_footer, said_of
from compaction.blocks.registration.foreign import OWN_FOLDER, assigned_id, is_parquet
from compaction.blocks.store import begin_anew, finish_anew
from compaction.storage.errors import ObjectChangedError, ObjectMissingError, ObjectTruncatedError, StorageError
from compaction.storage.objects.store import ObjectStorage
from compaction.unexpected import defect, lack_of

# Blocks as they are found in a store, without any index: where they are, and what they say of themselves.
#
# Footers are read a few at a time. An error of one object is reported and no reason to stop; what is wrong with the
# store ends it, or blocks would be taken for damaged that are only out of reach.

READ_AT_ONCE: Final = 8
EXAMPLES: Final = 100

T = TypeVar("T")
Place: TypeAlias = tuple[str, BlockPlace]
"""The path of a block, and whose it is."""
Shard: TypeAlias = tuple[str, int]
Unreadable: TypeAlias = dict[str, str]
"""Path and reason."""


class Lake(NamedTuple):
    """Below `folder` ("" for the root), Parquet files of other layouts are blocks of this tenant and shard, by the ids
    that registration gives them (`foreign.assigned_id`).
    """

    folder: str
    tenant: str
    shard: int


class Unsaid(NamedTuple):
    """The facts that no object states: the column of time of blocks that name none, and the columns of paths that may
    be lost.
    """

    time_column: str = ""
    given_up: tuple[str, ...] = ()


class FoundBlock(NamedTuple):
    """A block that is there. `block` None: all of its rows would have to be read for it."""

    path: str
    place: BlockPlace
    relative: Relative
    block: Block | None


@dataclass(slots=True)
class StoreSurvey:
    """The number of blocks of each tenant and shard; `files`: those of lakes. `foreign`: the number of objects that are
    no blocks, with the first of them.
    """

    shards: Counter[Shard] = field(default_factory=Counter)
    files: dict[Shard, list[Place]] = field(default_factory=dict)
    foreign: int = 0
    examples: list[str] = field(default_factory=list)


def survey(objects: ObjectStorage, lakes: Sequence[Lake], owners: FolderOwners) -> StoreSurvey:
    """One listing of the whole store, which `owners` sees too. Raises ObjectError."""
    found = StoreSurvey()
    for info in owners.noting("", objects.list()):
        place = parse_block_path(info.path)
        if place is not None:
            found.shards[place.tenant, place.shard] += 1
        elif (lake := _lake_of(info.path, lakes)) is not None:
            shard = (lake.tenant, lake.shard)
            found.shards[shard] += 1
            found.files.setdefault(shard, []).append((info.path, BlockPlace(*shard, assigned_id(info))))
        elif not info.path.startswith(OWN_FOLDER):
            found.foreign += 1
            if len(found.examples) < EXAMPLES:
                found.examples.append(info.path)
    return found


def _lake_of(path: str, lakes: Sequence[Lake]) -> Lake | None:
    """Of two folders that hold a file the longer one counts."""
    if not is_parquet(path):
        return None
    holding = [lake for lake in lakes if not lake.folder or path.startswith(f"{lake.folder.rstrip('/')}/")]
    return max(holding, key=lambda lake: len(lake.folder), default=None)


def places(objects: ObjectStorage, shard: Shard, files: Mapping[Shard, list[Place]]) -> list[Place]:
    """All blocks of a shard, in order of their ids. Raises ObjectError."""
    paths = (info.path for info in objects.list(shard_prefix(*shard)))
    blocks = [(path, place) for path in paths if (place := parse_block_path(path)) is not None]
    return sorted([*blocks, *files.get(shard, ())], key=lambda block: (block[1].id, block[0]))


def read_found(
    objects: ObjectStorage, blocks: Sequence[Place], *, unsaid: Unsaid, unreadable: Unreadable
) -> list[FoundBlock]:
    """Read the footers of blocks; add those that cannot be read to `unreadable`. Raises ObjectError for what is wrong
    with the store.
    """

    def one(path: str, place: BlockPlace) -> FoundBlock:
        footer = read_footer(objects, path)
        said = said_of(footer)
        block = None if said.fingerprint is None else _describe(objects, footer, said, place, unsaid)
        return FoundBlock(path, place, _relative(place, said, footer), block)

    return list(_each(one, blocks, unreadable))


def describe_found(
    objects: ObjectStorage, blocks: Sequence[Place], *, unsaid: Unsaid, unreadable: Unreadable
) -> list[Block]:
    """The blocks, however much of them has to be read for it. As `read_found`."""

    def one(path: str, place: BlockPlace) -> Block:
        footer = read_footer(objects, path)
        return _describe(objects, footer, said_of(footer), place, unsaid)

    return list(_each(one, blocks, unreadable))


def _each(call: Callable[[str, BlockPlace], T], blocks: Sequence[Place], unreadable: Unreadable) -> Iterator[T]:
    def one(item: Place) -> tuple[T] | str | None:
        try:
            return (call(*item),)
        except ObjectMissingError:
            # Deleted since the listing: it is neither rebuilt nor reported as unreadable.
            return None
        except (BlockFormatError, ObjectChangedError, ObjectTruncatedError) as error:
            return error.reason
        except BlockStoreError as error:
            return str(error)
        except StorageError:
            # Of the store as a whole: to go on would leave blocks out of the index that can be read.
            raise
        except Exception as error:
            # Libraries raise what they like for a damaged file: it is named, and the others are rebuilt.
            if lack := lack_of(error, item[0]):
                raise lack from error
            return defect(error, item[0])

    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        for (path, _), answer in zip(blocks, pool.map(one, blocks), strict=True):
            if isinstance(answer, str):
                unreadable[path] = answer
            elif answer is not None:
                yield answer[0]


def _describe(
    objects: ObjectStorage, footer: BlockFooter, said: BlockMetadata, place: BlockPlace, unsaid: Unsaid
) -> Block:
    return describe_footer(
        objects,
        footer,
        said,
        tenant=place.tenant,
        shard=place.shard,
        level=said.level or 0,
        block=place.id,
        time_column=said.time_column or unsaid.time_column,
        given_up=unsaid.given_up,
    ).block


def _relative(place: BlockPlace, said: BlockMetadata, footer: BlockFooter) -> Relative:
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
        ancestors=array("q", map(hash, said.ancestors)),
        modified=footer.info.modified.timestamp(),
    )
    return Relative(place.id, said.level or 0, made)


# The index rebuilt from the objects, when the database is lost.
#
# What is promised: after it, readers see exactly the rows they saw before the loss, whenever the objects are as a
# crash at any moment left them (`lineage` says why). What no object tells, and so is not as it was:
#
# * Blocks that had expired or were dropped, and whose objects are still there, are back: until retention runs again,
#   or for good.
# * What a writer uploaded and did not register is there now. If it uploaded the same rows again, they are there
#   twice.
# * Duplicates that a compaction had removed are back while the sources are still there, and removed by the next one.
# * Quarantine, jobs and receipts are forgotten; a block that cannot be read is in no index, and named in the report.
# * A writer's block that does not say its level is of level 0.
# * Files of other layouts, which were registered where they lay, say neither tenant nor shard: `lakes` do.
#
# Everything that works on the store is stopped before: a writer or worker that goes on with the old index adds and
# deletes blocks that the new one does not know of. Tokens begin above all that were ever given, so that no attempt
# from before can commit.
#
# Memory: about 5 KiB for each block of the largest shard (1 GiB for 200,000, of which half name 20 sources), and 8
# bytes for each of its ancestors.

PAGE: Final = 256
"""Blocks between two reports of progress, and in one change of the index."""
EPOCH: Final = 1_577_836_800
"""The beginning of 2020."""
MOST_TOKENS: Final = 1 << 30


class RebuildProgress(NamedTuple):
    """`read` of `of` blocks; `tenant` and `shard` are those being read."""

    read: int
    of: int
    tenant: str
    shard: int


@dataclass(slots=True)
class Rebuilt:
    """The result of a rebuild. `blocks` with their `rows` and `bytes` are live. `replaced`: objects of blocks that were
    replaced. `unused`: outputs that were never committed, or whose sources are taken instead. Both are orphans now, and
    collected as such, not before a week has passed. `unreadable`: path and reason; nothing is known of their rows.
    `doubts`: what could not be decided for certain. `foreign`: the number of objects that are no blocks by their path
    and in no lake, and the first of them (`examples`). `left`: files of lakes that are not live; the sweeper never
    deletes them.
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
    left: list[str] = field(default_factory=list)


def rebuild_index(
    objects: ObjectStorage,
    index: IndexDatabase,
    *,
    now: int,
    time_column: str = "",
    given_up: tuple[str, ...] = (),
    lakes: Sequence[Lake] = (),
    report: Callable[[RebuildProgress], None] = lambda progress: None,
) -> Rebuilt:
    """Fill an empty index from the objects, and bind the store to it. Repeating after a crash begins again.

    `now`: epoch microseconds. `time_column`: for blocks that do not name theirs and have several (see `describe`).
    `given_up`: columns that only paths hold, and that were given up when the files were registered.
    `lakes`: folders of files that were registered where they lay.

    Raises:
        IndexMismatchError: the index is not empty; one that exists is never replaced.
        ForeignFileError: the store has no identity, and lies in a folder of others (`bind`).
        ObjectError, DatabaseUnavailableError, DatabaseError: begin again.
    """
    word = begin_anew(objects, index)
    _raise_tokens(index, now)
    owners, unsaid = FolderOwners(objects), Unsaid(time_column, given_up)
    found = survey(objects, lakes, owners)
    result = Rebuilt(foreign=found.foreign, examples=found.examples)
    total, read = sum(found.shards.values()), 0
    for shard in sorted(found.shards):
        blocks: list[FoundBlock] = []
        for part in chunks(places(objects, shard, found.files), PAGE):
            owned = owners.of(path for path, _ in part)
            result.unreadable.update((path, f"it belongs to {sign}") for path, sign in owned.items())
            ours = [item for item in part if item[0] not in owned]
            blocks += read_found(objects, ours, unsaid=unsaid, unreadable=result.unreadable)
            read += len(part)
            report(RebuildProgress(read, total, *shard))
        _enter(objects, index, blocks, unsaid, now, result)
    finish_anew(objects, index, word)
    return result


def _raise_tokens(index: IndexDatabase, now: int) -> None:
    """Tokens count assignments and grow by one: seconds are above all of them, also those of an index that was rebuilt
    before. Counted from 2020, and never more than half of what a Lease can hold, whatever the clock says.
    """
    floor = min(max(0, now // SECOND - EPOCH), MOST_TOKENS)
    index.change(
        lambda change: change.connection.execute(
            update(HEAD).where(HEAD.c.token_floor < floor).values(token_floor=floor)
        )
    )


def _enter(
    objects: ObjectStorage,
    index: IndexDatabase,
    found: Sequence[FoundBlock],
    unsaid: Unsaid,
    now: int,
    result: Rebuilt,
) -> None:
    """Register what lives of a shard, in the order in which it was made."""
    verdict = decide(item.relative for item in found)
    result.replaced += len(verdict.dead)
    result.unused += len(verdict.unused)
    result.doubts += verdict.doubts
    live = [item for item in found if item.relative.id in verdict.live]
    others = (item.path for item in found if item.relative.id not in verdict.live)
    result.left += [path for path in others if parse_block_path(path) is None]
    for part in chunks(live, PAGE):
        blocks = [item.block for item in part if item.block is not None]
        # Blocks of writers that count no fingerprint: only now is it known that their rows have to be read.
        rest = [(item.path, item.place) for item in part if item.block is None]
        blocks += describe_found(objects, rest, unsaid=unsaid, unreadable=result.unreadable)
        for block in _register(index, sorted(blocks, key=lambda block: block.id), now, result):
            result.blocks += 1
            result.rows += block.rows
            result.bytes += block.bytes


def _register(index: IndexDatabase, blocks: Sequence[Block], now: int, result: Rebuilt) -> Sequence[Block]:
    """Those that the index took: all, as a rule; else one by one, to name those that it refused."""
    try:
        register(index, blocks, now=now)
        return blocks
    except InvalidBlockError as error:
        if len(blocks) == 1:
            result.unreadable[blocks[0].path] = error.reason
            return ()
    return [item for block in blocks for item in _register(index, [block], now, result)]
