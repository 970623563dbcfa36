"""Blocks as they are found in a store, without any index: where they are, and what they say of themselves.

Footers are read a few at a time. An error of one object is reported and no reason to stop; what is wrong with the
store ends it, or blocks would be taken for damaged that are only out of reach.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from compaction.blocks.errors import BlockFormatError, BlockStoreError
from compaction.blocks.format.footer import BlockFooter, read_footer
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.model import Block
from compaction.blocks.owners import FolderOwners
from compaction.blocks.paths import BlockPlace, parse_block_path, shard_prefix
from compaction.blocks.rebuild.lineage import Made, Relative
from compaction.blocks.registration.describe import describe_footer, said_of
from compaction.blocks.registration.foreign import OWN_FOLDER, assigned_id, is_parquet
from compaction.storage.errors import ObjectChangedError, ObjectMissingError, ObjectTruncatedError, StorageError
from compaction.storage.objects.store import ObjectStorage
from compaction.unexpected import defect, lack_of

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
    """What no object says: the column of time of blocks that name none, and the columns of paths that may be lost."""

    time_column: str = ""
    given_up: tuple[str, ...] = ()


class FoundBlock(NamedTuple):
    """A block that is there. `block` None: all of its rows would have to be read for it."""

    path: str
    place: BlockPlace
    relative: Relative
    block: Block | None


@dataclass(slots=True)
class Survey:
    """How many blocks there are of each tenant and shard; `files`: those of lakes. `foreign`: how many objects are no
    blocks, with the first of them.
    """

    shards: Counter[Shard] = field(default_factory=Counter)
    files: dict[Shard, list[Place]] = field(default_factory=dict)
    foreign: int = 0
    examples: list[str] = field(default_factory=list)


def survey(objects: ObjectStorage, lakes: Sequence[Lake], owners: FolderOwners) -> Survey:
    """One listing of the whole store, which `owners` sees too. Raises ObjectError."""
    found = Survey()
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
    return sorted([*blocks, *files.get(shard, ())], key=lambda one: (one[1].id, one[0]))


def read_found(
    objects: ObjectStorage, blocks: Sequence[Place], *, unsaid: Unsaid, unreadable: Unreadable
) -> list[FoundBlock]:
    """What the footers say; adds what cannot be read. Raises ObjectError for what is wrong with the store."""

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
            return None
        except (BlockFormatError, ObjectChangedError, ObjectTruncatedError) as error:
            return error.reason
        except BlockStoreError as error:
            return str(error)
        except StorageError:
            raise
        except Exception as error:
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
