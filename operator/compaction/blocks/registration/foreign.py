"""Parquet files that other programs have written: those a store can take, and the order of their rows."""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from ulid import ULID

from compaction.api.text.printing import cut, plural, printable
from compaction.blocks.errors import UnsuitableBlockError
from compaction.blocks.format.footer import BlockFooter
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.index.registering import KnownPath
from compaction.blocks.merge.schema import without_dictionary
from compaction.blocks.model import SECOND, SUFFIX, ULID_TEXT, parse_block_path
from compaction.storage.objects.store import ObjectInfo

# Parquet files that other programs have written: where they are in a store, which of them it knows already, which it
# cannot take, and the id that such a file gets.
#
# The id is made of the path and of the time of the object, so registering a file again finds it registered.

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
    """The files that a listing has passed over: their number for each reason, and the first of them by their paths, in
    whatever order a folder lists them.
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
    """Return whether a path is that of a Parquet file that another program has finished, and none of ours."""
    if not path.endswith(SUFFIX) or path.startswith(OWN_FOLDER):
        return False
    # A tenant may begin with _ too.
    return not _is_hidden(path) or parse_block_path(path) is not None


def _is_hidden(path: str) -> bool:
    """Return whether a path is hidden: other writers keep unfinished files in folders such as _temporary, and
    `_SUCCESS` beside them.
    """
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
    first, last = (_EPOCH + timedelta(microseconds=time) if abs(time) <= _LAST_TIME else _EPOCH for time in times)
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
        if (registered := known.get(info.path)) is None:
            continue
        if registered.block.bytes != info.size or ids.get(info.path, registered.block.id) != registered.block.id:
            overwritten[info.path] = (
                f"it was overwritten since block {registered.block.id} of {registered.block.bytes} bytes "
                "was registered at this path, and a block never changes: write the new rows to another path and "
                "register that"
            )
        elif _written_by(info.modified) <= registered.changed_at:
            same[info.path] = registered
    return same, overwritten


# By which columns the rows of a block are sorted, and who says so.
#
# What a block or its footer declares is honoured and verified: wherever rows are read, neighbours are compared.
# Bounds of row groups alone prove no order by several columns, since the same first value may end one row group and
# begin the next; they only disprove one. Where nothing is declared, or the declaration is wrong, the rows are
# compared by the order that the policy wants, then by time. No other order is looked for: a few rows are in the order
# of some column by chance.
#
# The order is that of the merge: column by column, ascending, texts by their bytes, NaN after all numbers, null last.

Key = tuple[str, ...]


class OrderSource(StrEnum):
    """The origin of the order by which a block is sorted."""

    DECLARED = "declared"
    POLICY = "policy"
    FOUND = "found"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """The order of a block's rows, empty when they are in none that counts; `why`: for people."""

    key: Key
    source: OrderSource
    why: str

    def __str__(self) -> str:
        return f"{', '.join(printable(cut(name, 40)) for name in self.key) or 'none'} ({self.why})"


class OrderCheck:
    """Compares each row with the one before it, batch by batch. `broken`: number of the first row, from 0, that belongs
    before its neighbour; `unordered`: the values of the columns cannot be compared.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.broken: int | None = None
        self.unordered = False
        self._rows = 0
        self._last: list[pa.Array] = []

    @property
    def holds(self) -> bool:
        """Return whether all rows so far are in order."""
        return self.broken is None and not self.unordered

    def update(self, batch: pa.RecordBatch) -> None:
        """The next rows of the file."""
        start, self._rows = self._rows, self._rows + batch.num_rows
        if not self.holds or not batch.num_rows:
            return
        columns = [batch.column(name) for name in self.key]
        first = [_decoded(column.slice(0, 1)) for column in columns]
        try:
            if self._last and _descent([pa.concat_arrays(pair) for pair in zip(self._last, first, strict=True)]) == 1:
                self.broken = start
                return
            found = _descent([_ranked(column) for column in columns])
        except pa.ArrowException:
            # Arrow cannot compare values of this type, so no order of them can be shown.
            self.unordered = True
            return
        self.broken = None if found is None else start + found
        self._last = [_decoded(column.slice(batch.num_rows - 1, 1)) for column in columns]


def _descent(columns: Sequence[pa.Array]) -> int | None:
    """The first row that belongs before its neighbour above."""
    count = len(columns[0]) - 1
    if count < 1:
        return None
    level = pa.array([True]).take(pa.nulls(count, pa.int8())).fill_null(True)  # so far equal to the row above
    below = pc.invert(level)
    for column in columns:
        for part in _parts(column):
            above, here = part.slice(0, count), part.slice(1, count)
            below = pc.or_(below, pc.and_(level, pc.fill_null(pc.less(here, above), False)))
            level = pc.and_(level, pc.fill_null(pc.equal(here, above), True))
    found = pc.index(below, True).as_py()
    return found + 1 if found >= 0 else None


def _parts(column: pa.Array) -> list[pa.Array]:
    """The column as parts that `less` orders one after the other: whether it is null, whether it is NaN, values."""
    if pa.types.is_null(column.type):
        return []
    parts = []
    if column.null_count:
        parts.append(column.is_null().cast(pa.int8()))
    if pa.types.is_floating(column.type):
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        missing = pc.is_nan(column)
        if pc.any(missing).as_py():
            parts.append(pc.fill_null(missing, False).cast(pa.int8()))
            column = pc.if_else(missing, pa.scalar(None, column.type), column)
    return [*parts, column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column]


def _ranked(column: pa.Array) -> pa.Array:
    """Of a dictionary the place of each value among its values, which costs less than to compare texts."""
    if not pa.types.is_dictionary(column.type):
        return _decoded(column)
    ranks = pc.rank(column.dictionary, tiebreaker="dense") if len(column.dictionary) else pa.array([], pa.uint64())
    return pc.take(ranks, column.indices)


def _decoded(column: pa.Array) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = without_dictionary(column.type)
    return column if kind.equals(column.type) else column.cast(kind)  # views have no comparison


def declared_order(footer: BlockFooter, said: BlockMetadata) -> Key:
    """The order that the block declares: in our metadata, else in its row groups."""
    return said.sort_key if said.sort_key is not None else footer.sorted_by


def checks_of(footer: BlockFooter, said: BlockMetadata, *, wanted: Key, time_column: str) -> list[OrderCheck]:
    """The orders that rows are to be compared by while they are read: declared, wanted by the policy, time."""
    keys = dict.fromkeys((declared_order(footer, said), wanted, (time_column,)))
    return [OrderCheck(key) for key in keys if key and all(name in footer.schema.names for name in key)]


def order_of_rows(
    footer: BlockFooter, said: BlockMetadata, checks: Sequence[OrderCheck], *, wanted: Key, time_column: str
) -> FoundOrder:
    """The order of a block whose rows were all compared."""
    by_key = {check.key: check for check in checks}
    declared = declared_order(footer, said)
    doubt = ""
    if declared:
        check = by_key[declared]
        if check.holds:
            return FoundOrder(declared, OrderSource.DECLARED, "declared")
        broken = f"row {check.broken} belongs before row {(check.broken or 1) - 1}"
        doubt = f"; declares {_named(declared)}, but {'these values have no order' if check.unordered else broken}"
    if wanted in by_key and by_key[wanted].holds:
        return FoundOrder(wanted, OrderSource.POLICY, f"as wanted{doubt}")
    if by_key[time_column,].holds:
        return FoundOrder((time_column,), OrderSource.FOUND, f"found{doubt}")
    becomes = f"{_named(wanted)}, as wanted" if wanted else f"{time_column}, the default"
    return FoundOrder((), OrderSource.NONE, f"a merge sorts it, by {becomes}{doubt}")


def is_proved(footer: BlockFooter, said: BlockMetadata) -> bool:
    """Return whether the declared order needs no read of the rows: we wrote it ourselves, or the bounds of the row
    groups prove it. (The merge compares rows in any case, and sorts first what is not in order.)
    """
    return said.sort_key is not None or not footer.sorted_by or footer.in_order()


def order_of_footer(footer: BlockFooter, said: BlockMetadata) -> FoundOrder:
    """The order of a block whose rows are not read now: what it declares, which `is_proved`."""
    declared = declared_order(footer, said)
    if declared:
        return FoundOrder(declared, OrderSource.DECLARED, "declared")
    return FoundOrder((), OrderSource.NONE, "declares none, and its rows were not read")


def _named(key: Key) -> str:
    return ", ".join(printable(cut(name, 40)) for name in key)
