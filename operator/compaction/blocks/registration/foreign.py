"""Parquet files that other programs have written: where they are in a store, which of them it knows already, which it
cannot take, and the id that such a file gets.

The id is made of the path and of the time of the object, so registering a file again finds it registered.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from ulid import ULID

from compaction.api.text.formatting import plural
from compaction.blocks.errors import UnsuitableBlockError
from compaction.blocks.index.registering import KnownPath
from compaction.blocks.model import SECOND
from compaction.blocks.paths import SUFFIX, ULID_TEXT, parse_block_path
from compaction.storage.objects.store import ObjectInfo

OWN_FOLDER: Final = "_compaction/"
"""What lies here is ours, and no block."""
HIDDEN: Final = "under names that begin with . or _"
EXAMPLES: Final = 3
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_PARTS: Final = ("year", "month", "day", "hour")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_TIME: Final = 8_000 * 365 * 86_400 * 1_000_000
"""Microseconds from the epoch that a calendar of four digits has, about."""
_TAIL_BYTES: Final = 10
_TIME_BYTES: Final = 6


@dataclass(slots=True)
class SkippedFiles:
    """What a listing has passed over: how many files for each reason, and the first of them by their paths, in whatever
    order a folder lists them.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, path: str, reason: str) -> None:
        """One more."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        first = self.examples.setdefault(reason, [])
        insort(first, path)
        del first[EXAMPLES:]

    def __iter__(self) -> Iterator[str]:
        """A line for each reason."""
        for reason, count in sorted(self.counts.items()):
            shown = ", ".join(self.examples[reason]) + (", ..." if count > EXAMPLES else "")
            yield f"{plural(count, 'file')} {reason}: {shown}"


def assigned_id(info: ObjectInfo) -> str:
    """The id of a file: the ULID that is its name, else one made of its path, as old as the object: in whole seconds,
    because most stores tell a listing the milliseconds and a HEAD the seconds of the same time.
    """
    name = info.path.rpartition("/")[2].removesuffix(SUFFIX)
    if ULID_TEXT.fullmatch(name):
        return name
    milliseconds = max(0, int(info.modified.timestamp())) * 1000
    tail = hashlib.sha256(info.path.encode()).digest()[:_TAIL_BYTES]
    return str(ULID.from_bytes(milliseconds.to_bytes(_TIME_BYTES, "big") + tail))


def parquet_among(infos: Iterable[ObjectInfo], skipped: SkippedFiles) -> Iterator[ObjectInfo]:
    """The Parquet files of a listing that other programs have finished; the others are noted in `skipped`."""
    for info in infos:
        if is_parquet(info.path):
            yield info
        elif not info.path.startswith(OWN_FOLDER):
            skipped.add(info.path, HIDDEN if _is_hidden(info.path) else f"not named *{SUFFIX}; name it to take it")


def is_parquet(path: str) -> bool:
    """Whether a path is that of a Parquet file that another program has finished, and none of ours."""
    if not path.endswith(SUFFIX) or path.startswith(OWN_FOLDER):
        return False
    # A tenant may begin with _ too.
    return not _is_hidden(path) or parse_block_path(path) is not None


def _is_hidden(path: str) -> bool:
    """What other writers have not finished lies in folders such as _temporary, and beside it lies `_SUCCESS`."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


def path_columns(path: str) -> dict[str, str]:
    """The columns that only the folders of a file hold, `region=eu/` as Hive, Spark and DuckDB write them: name and
    value. A tenant's folder may hold `=` as well, but not in the paths that blocks have.
    """
    if parse_block_path(path) is not None:
        return {}
    pairs = (folder.partition("=") for folder in path.split("/")[:-1])
    return {urllib.parse.unquote(name): urllib.parse.unquote(value) for name, sign, value in pairs if sign and name}


def lost_columns(path: str, columns: Iterable[str], given_up: Collection[str] = ()) -> dict[str, str]:
    """Columns of the path that a merge would lose, because the file does not hold them. `given_up`: may be lost."""
    # Names of partitions are compared without case, as Hive and Spark do.
    held = {name.casefold() for name in (*columns, *given_up)}
    return {name: value for name, value in path_columns(path).items() if name.casefold() not in held}


def refuse_lost_columns(path: str, lost: Mapping[str, str], times: tuple[int, int], instants: bool) -> None:
    """Raise UnsuitableBlockError for a column that would be lost, unless every row holds it in another form: a date, or
    a year, month, day and hour, that the times of all rows are of. `times`: of the first and the last row, epoch
    microseconds; `instants`: whether they are such, and not times of an unknown zone, whose date nothing proves.
    """
    proved = _proved_by_time(lost, times) if instants else frozenset[str]()
    left = {name: value for name, value in lost.items() if name not in proved}
    if left:
        name, value = next(iter(left.items()))
        zone = (
            ""
            if instants or name not in _proved_by_time(lost, times)
            else "its times have no time zone to prove it by, "
        )
        raise UnsuitableBlockError(
            path,
            f"the column {name[:100]!r} ({value[:100]!r}) is in its path only, {zone}and no merge would keep it: write "
            f"the file with that column, or give the column up with --drop-path-column {name[:100]} (over HTTP: "
            f"dropPathColumns)",
        )


def _proved_by_time(columns: Mapping[str, str], times: tuple[int, int]) -> frozenset[str]:
    """Those whose value the first and the last time have, in UTC, and so each time between."""
    first, last = (_EPOCH + timedelta(microseconds=one) if abs(one) <= _LAST_TIME else _EPOCH for one in times)
    proved = set[str]()
    for name, value in columns.items():
        if (part := name.casefold()) in _PARTS:
            # The rows between have the part of both ends only where the ends have all larger parts in common.
            length = _PARTS.index(part) + 1
            same = first.timetuple()[:length] == last.timetuple()[:length]
            if same and value.isdecimal() and int(value) == first.timetuple()[length - 1]:
                proved.add(name)
        elif _DATE.fullmatch(value) and value == first.date().isoformat() == last.date().isoformat():
            proved.add(name)
    return frozenset(proved)


def _written_by(modified: datetime) -> int:
    """Epoch microseconds: until when the object was written at the latest, as times without smaller digits are cut."""
    cut = SECOND if not modified.microsecond else 1 if modified.microsecond % 1000 else SECOND // 1000
    return int(modified.timestamp()) * SECOND + modified.microsecond + cut - 1


def known_files(
    infos: Iterable[ObjectInfo], known: Mapping[str, KnownPath], ids: Mapping[str, str]
) -> tuple[dict[str, KnownPath], dict[str, str]]:
    """Of the objects, those that need not be read: the ones that the index knows, and, with the reason, those that were
    overwritten. `ids`: by path, the id that a file would get, where that is known without its footer.

    The same object has the id and size that are registered, and was not written since the index last changed the block.
    """
    same: dict[str, KnownPath] = {}
    overwritten: dict[str, str] = {}
    for info in infos:
        if (one := known.get(info.path)) is None:
            continue
        if one.block.bytes != info.size or ids.get(info.path, one.block.id) != one.block.id:
            overwritten[info.path] = (
                f"it was overwritten since block {one.block.id} of {one.block.bytes} bytes was registered at this "
                "path, and a block never changes: write the new rows to another path and register that"
            )
        elif _written_by(info.modified) <= one.changed_at:
            same[info.path] = one
    return same, overwritten
