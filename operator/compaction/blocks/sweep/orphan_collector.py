"""Objects that no transaction knows: what dead attempts uploaded, what writers never registered.

Invariants:

* Only objects at paths of blocks (`paths`) are checked; everything else below the root belongs to other programs.
* Nothing is collected that an open claim may still commit: an object whose footer names a job with an open claim, and
  the token of that claim or a later one, stays, however old it looks. That matters: an attempt may upload for hours,
  and S3 dates an object by when its upload began.
* Everything else must be older than a safety age, by the store's own clock on both sides: the time between the upload
  of a block and its registration is never longer.
* What was there before index and store were bound to each other waits for a week after that: the index may have been
  rebuilt by rules whose result a user reviews first.
* What lies in a folder that shows signs of a table format or of another store belongs to that (`owners`).
* In a local folder, writes that never ended leave files that no listing shows (`name#1`); they go by the same age. What
  other stores keep of unfinished uploads cannot be listed through the library: a rule of the bucket has to end them.
* An object is condemned first, so that it cannot become a block, then deleted, then that is confirmed
  (`index.tombstones`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from compaction.blocks.errors import BlockFormatError
from compaction.blocks.format.metadata import BlockMetadata, decode
from compaction.blocks.index.claims import open_jobs
from compaction.blocks.index.rows import chunks
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.index.tombstones import condemn, condemned, confirm_gone, unknown_paths
from compaction.blocks.model import SECOND, parse_block_path
from compaction.blocks.owners import IDENTITY_PATH, FolderOwners
from compaction.blocks.store import bind
from compaction.storage.errors import ObjectMissingError
from compaction.storage.objects.store import ObjectInfo, ObjectStorage, is_staged

SAFETY_AGE: Final = 86_400 * SECOND
"""Microseconds; a day is more than any writer needs to register what it has uploaded."""
PAUSE_AFTER_BINDING: Final = 7 * SAFETY_AGE
CLOCK_PATH: Final = "_compaction/clock"
"""Written to learn what time it is for the store. No path of a block."""
PAGE: Final = 1000
AT_ONCE: Final = 10_000
FOOTERS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that may be deleted: `age` in microseconds, by the store's clock."""

    path: str
    bytes: int
    age: int


@dataclass(frozen=True, slots=True)
class OrphanSearch:
    """`orphans` to collect; `protected`: how many objects belong to open claims; `waiting`: how many are old enough but
    were there before the index was. `owned`: paths of objects that belong to others, and to whom. `more`: the limit
    ended the search.
    """

    orphans: tuple[Orphan, ...]
    protected: int
    waiting: int
    more: bool
    owned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """The objects that were deleted, with their bytes where they are known, and those that could not be: path and
    reason.
    """

    objects: int
    bytes: int
    failed: Mapping[str, str] = field(default_factory=dict)
    more: bool = False


def find_orphans(
    objects: ObjectStorage, index: IndexDatabase, *, older_than: int = SAFETY_AGE, limit: int = AT_ONCE
) -> OrphanSearch:
    """Return the objects that `collect_orphans` would delete now: up to `limit`. Nothing is deleted (a dry run).
    `older_than`: microseconds, see the module.

    Raises:
        IndexMismatchError: the index is not that of this store, and knows nothing of it.
        ObjectError, DatabaseUnavailableError, DatabaseError
    """
    if older_than < 0:
        raise ValueError("a safety age is not negative")
    bind(objects, index)
    now = _store_now(objects)
    bound = objects.head(IDENTITY_PATH).modified
    owners = FolderOwners(objects)
    found: list[Orphan] = []
    owned: dict[str, str] = {}
    protected = waiting = 0
    for page in _pages(_old_blocks(objects, now, older_than)):
        infos = {info.path: info for info in page}
        unknown = [infos[path] for path in unknown_paths(index, tuple(infos))]
        settled = [info for info in unknown if info.modified > bound or _micros(bound, now) >= PAUSE_AFTER_BINDING]
        waiting += len(unknown) - len(settled)
        free = _not_claimed(objects, index, settled)
        protected += len(settled) - len(free)
        orphans = [Orphan(info.path, info.size, _micros(info.modified, now)) for info in free]
        found += _not_owned(owners, orphans, owned)
        if len(found) >= limit:
            break
    found += _not_owned(owners, tuple(_unfinished(objects, now, older_than)), owned)
    return OrphanSearch(tuple(found[:limit]), protected, waiting, more=len(found) >= limit, owned=owned)


def _not_owned(owners: FolderOwners, orphans: Sequence[Orphan], owned: dict[str, str]) -> list[Orphan]:
    """Those that lie in no folder of others; adds the rest to `owned`."""
    signs = owners.of(orphan.path for orphan in orphans)
    owned |= {path: f"it is kept: it belongs to {sign}" for path, sign in signs.items()}
    return [orphan for orphan in orphans if orphan.path not in signs]


def collect_orphans(
    objects: ObjectStorage, index: IndexDatabase, *, now: int, older_than: int = SAFETY_AGE, limit: int = AT_ONCE
) -> Collected:
    """Delete orphans, also those that an earlier call condemned and did not get to delete. `now`: the index's time.

    Repeating is harmless, and so are several collectors at once. Raises as `find_orphans`; objects that the store does
    not delete are returned, and tried again by the next call.
    """
    if older_than < 0:
        raise ValueError("a safety age is not negative")
    bind(objects, index)
    # First those of an earlier call that died: they are condemned, so nothing can have begun to refer to them.
    earlier = condemned(index, limit=limit)
    count, failed = _delete(objects, index, earlier, now)
    search = find_orphans(objects, index, older_than=older_than, limit=limit)
    new = {orphan.path: orphan for orphan in search.orphans if orphan.path not in failed and not is_staged(orphan.path)}
    failed |= search.owned
    size = 0
    for part in chunks(tuple(new), PAGE):
        # Only what the index still does not know is condemned: a registration may have come between the listing and
        # now.
        paths = condemn(index, part, now=now)
        deleted, refused = _delete(objects, index, paths, now)
        count += deleted
        size += sum(new[path].bytes for path in paths if path not in refused)
        failed |= refused
    for orphan in search.orphans:
        if objects.folder is not None and is_staged(orphan.path):
            try:
                (objects.folder / orphan.path).unlink(missing_ok=True)
            except OSError as error:
                failed[orphan.path] = f"the folder refused: {error.strerror}"
            else:
                count, size = count + 1, size + orphan.bytes
    return Collected(count, size, failed, more=search.more or len(earlier) >= limit)


def _delete(objects: ObjectStorage, index: IndexDatabase, paths: Sequence[str], now: int) -> tuple[int, dict[str, str]]:
    count = 0
    failed: dict[str, str] = {}
    owners = FolderOwners(objects)
    for part in chunks(paths, PAGE):
        refused = {path: f"it is kept: it belongs to {sign}" for path, sign in owners.of(part).items()}
        free = [path for path in part if path not in refused]
        refused |= {path: error.reason for path, error in objects.delete(free)}
        confirm_gone(index, [path for path in part if path not in refused], now=now)
        count += len(part) - len(refused)
        failed |= refused
    return count, failed


def _unfinished(objects: ObjectStorage, now: datetime, older_than: int) -> Iterator[Orphan]:
    if objects.folder is None:
        return
    for file in objects.folder.glob("*/*/*#*"):
        path = file.relative_to(objects.folder).as_posix()
        if not is_staged(path) or parse_block_path(path.rpartition("#")[0]) is None:
            continue
        try:
            info = file.stat()
        except FileNotFoundError:
            continue  # its writer is alive, and done
        age = _micros(datetime.fromtimestamp(info.st_mtime, UTC), now)
        if age > older_than:
            yield Orphan(path, info.st_size, age)


def _store_now(objects: ObjectStorage) -> datetime:
    """The time by the clock that dates the objects, which may be another one than ours."""
    objects.put(CLOCK_PATH, b"")
    return objects.head(CLOCK_PATH).modified


def _old_blocks(objects: ObjectStorage, now: datetime, older_than: int) -> Iterator[ObjectInfo]:
    return (
        info
        for info in objects.list()
        if parse_block_path(info.path) is not None and _micros(info.modified, now) > older_than
    )


def _pages(infos: Iterator[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    while page := list(islice(infos, PAGE)):
        yield page


def _micros(start: datetime, end: datetime) -> int:
    return int((end - start).total_seconds() * SECOND)


def _not_claimed(objects: ObjectStorage, index: IndexDatabase, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Those that no open claim may commit. The claims are read last: a job that closed since has committed, and is
    known to the index by now, or never will.
    """
    if not infos:
        return []
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        said = list(pool.map(lambda info: _said(objects, info.path), infos))
    tokens = {job.job: job.token for job in open_jobs(index)}
    return [
        info
        for info, item in zip(infos, said, strict=True)
        # The upload of a smaller token can never be committed. One with a token that the index does not know yet stays.
        if item is not None and not (item.job in tokens and (item.token is None or item.token >= tokens[item.job]))
    ]


def _said(objects: ObjectStorage, path: str) -> BlockMetadata | None:
    """Return the statements of an object about itself, empty when it cannot be read; None when it is gone."""
    # Most searches find nothing to read, and what reads Parquet takes longer to import than they take.
    from compaction.blocks.format.footer import read_footer

    try:
        return decode(read_footer(objects, path, look=False).metadata)
    except ObjectMissingError:
        return None
    except (BlockFormatError, ValueError):
        # It names no job, so no open claim can keep it; the age of the object decides.
        return BlockMetadata()
