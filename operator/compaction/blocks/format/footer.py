"""The footer of a Parquet file, read through ranged reads and checked, and the column that says when a row was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.api.text.printing import cut, printable
from compaction.blocks.errors import BlockFormatError, CorruptBlockError, UnsuitableBlockError
from compaction.blocks.fingerprint.cells import plain_type
from compaction.blocks.format.footer_keys import texts_in
from compaction.blocks.format.footer_shape import Leaf, chunk, count, leaves, need, structs
from compaction.blocks.format.int96 import MAGIC, Int96Error, Int96Reading, arrow_schema, has_int96, reading_of
from compaction.blocks.format.logical import LeafMeaning, leaf_meanings, placed, schema_id, with_texts
from compaction.blocks.format.thrift import ENCRYPTION_ALGORITHM, FooterError, Struct, decode
from compaction.blocks.model import Block
from compaction.storage.errors import ObjectError
from compaction.storage.objects.store import ObjectInfo, ObjectStorage
from compaction.unexpected import lack_of

# The footer of a Parquet file, read through ranged reads and checked before anything is believed.
#
# Two requests as a rule: the end of the object, and its first four bytes. A footer that is cut off, contradicts
# itself or the size of the object, or would cost more than it may to parse, ends in CorruptBlockError or
# UnsuitableBlockError that names the object. Memory is bounded by `MAX_FOOTER` and by what `thrift` lets through.

ENCRYPTED: Final = b"PARE"
TAIL_BYTES: Final = 64 << 10
"""What is read of the end at first; most footers fit."""
MAX_FOOTER: Final = 16 << 20
METADATA_PREFIX: Final = b"compaction.dev."
_FRAME: Final = 8
LIBRARY_FAILURES: Final = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""What pyarrow raises for files that are not what they should be."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """No value of a column is below `low` or above `high`: numbers, truth, or bytes in the order of bytes.

    They need not be values of the column (long texts are cut). None: unknown, or there are nulls only. `nulls`: how
    many, None when unknown.
    """

    low: int | float | bytes | None
    high: int | float | bytes | None
    nulls: int | None


UNKNOWN: Final = Bounds(None, None, None)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: `start` and `bytes` are its place in the object, compressed; `bounds` by the name of a column.

    `uncompressed`: bytes after decompression, still encoded; what a merge needs to keep of it is at least that.
    """

    rows: int
    start: int
    bytes: int
    uncompressed: int
    bounds: Mapping[str, Bounds]


@dataclass(frozen=True, slots=True)
class BlockFooter:
    """All that a footer says. `bounds` are of plain top columns only. Of the metadata of `schema` there is what its
    leaves mean beyond their Arrow types (`logical`).

    `sorted_by`: the columns by which each row group says it is sorted, ascending and all alike, else empty; whether
    the row groups follow each other in that order is another question (`in_order`). `int96`: how timestamps
    that are stored so are read. `meanings`: of the leaves, by their paths in `schema`.
    """

    info: ObjectInfo
    rows: int
    row_groups: tuple[RowGroup, ...]
    schema: pa.Schema
    schema_id: str
    sorted_by: tuple[str, ...]
    nulls_first: bool
    metadata: Mapping[str, str]
    parquet: pq.FileMetaData
    int96: Int96Reading
    meanings: Mapping[str, LeafMeaning]

    def bounds(self, column: str) -> Bounds:
        """Of the whole file."""
        groups = [group for group in self.row_groups if group.rows]
        every = [(group.rows, group.bounds.get(column, UNKNOWN)) for group in groups]
        nulls = None if any(item.nulls is None for _, item in every) else sum(item.nulls or 0 for _, item in every)
        # A row group of nulls only has no bounds and widens none.
        valued = [item for rows, item in every if item.nulls != rows]
        if not valued or any(item.low is None or item.high is None for item in valued):
            return Bounds(None, None, nulls)
        lows: list[Any] = [item.low for item in valued]
        highs: list[Any] = [item.high for item in valued]
        return Bounds(min(lows), max(highs), nulls)

    def in_order(self) -> bool:
        """Return whether bounds prove that the row groups follow each other by the first column they are sorted by.

        A value at the end of one and at the beginning of the next proves nothing when there is a second column.
        """
        groups = [group for group in self.row_groups if group.rows]
        if not self.sorted_by or len(groups) < 2:
            return bool(self.sorted_by)
        bounds = [group.bounds.get(self.sorted_by[0], UNKNOWN) for group in groups]
        if any(bound.low is None or bound.high is None or bound.nulls != 0 for bound in bounds):
            return False
        strict = len(self.sorted_by) > 1
        return all(
            item.high < other.low or (not strict and item.high == other.low)  # type: ignore[operator]
            for item, other in pairwise(bounds)
        )


def read_footer(objects: ObjectStorage, path: str, *, limit: int = MAX_FOOTER, look: bool = True) -> BlockFooter:
    """Read and check the footer of an object. Without `look` its schema may be none to merge by: of a file of Spark
    the INT96 is not read, and what else it could be merged with not known (`int96.reading_of`).

    Raises CorruptBlockError, UnsuitableBlockError (a sound file that is not for us), and the errors of objects.
    """
    info = objects.head(path)
    raw = _raw_footer(objects, info, limit)
    try:
        shape = _shape(decode(raw), end=info.size - len(raw) - _FRAME)
    except FooterError as error:
        kind = UnsuitableBlockError if error.costly else CorruptBlockError
        raise kind(path, str(error)) from None
    try:
        # Only now: some contradictions in a footer end the process when the library reads it (`footer_shape`). It gets
        # the footer as a file without data, so it asks the store for nothing.
        framed = MAGIC + raw + len(raw).to_bytes(4, "little") + MAGIC
        parquet = pq.ParquetFile(pa.BufferReader(framed), thrift_string_size_limit=limit).metadata
        int96 = _reading(objects, info, parquet, raw, look=look)
        parquet = int96.metadata(parquet, raw)
        schema = arrow_schema(parquet, parquet.schema.to_arrow_schema(), pa.BufferReader(framed), int96)
        meanings = placed(int96.meanings(shape.meanings), schema)
        schema = int96.schema(schema, meanings)
        schema = with_texts(schema, texts_in(meanings, parquet.metadata or {}))
        identity = schema_id(schema)
    except FooterError as error:
        raise UnsuitableBlockError(path, str(error)) from None
    except Int96Error as error:
        raise UnsuitableBlockError(path, str(error)) from None
    except (BlockFormatError, ObjectError):
        raise
    except LIBRARY_FAILURES as error:
        if lack := lack_of(error, path):
            raise lack from error
        raise CorruptBlockError(path, f"its footer cannot be read ({short(error)})") from None
    twice = next((name for name in schema.names if len(schema.get_all_field_indices(name)) > 1), None)
    if twice is not None:
        raise UnsuitableBlockError(path, f"it has two columns named {twice[:100]!r}")
    return BlockFooter(
        info=info,
        rows=shape.rows,
        row_groups=shape.groups,
        schema=schema,
        schema_id=identity,
        sorted_by=shape.sorted_by,
        nulls_first=shape.nulls_first,
        metadata=shape.metadata,
        parquet=parquet,
        int96=int96,
        meanings=meanings,
    )


def _reading(
    objects: ObjectStorage, info: ObjectInfo, parquet: pq.FileMetaData, raw: bytes, *, look: bool
) -> Int96Reading:
    if not has_int96(parquet):
        return Int96Reading()
    with objects.reader(info.path, info=info) as source:
        return reading_of(parquet, raw, source, look=look)


def _raw_footer(objects: ObjectStorage, info: ObjectInfo, limit: int) -> bytes:
    """The bytes of the footer, without length and magic."""
    path = info.path
    if info.size < len(MAGIC) + _FRAME:
        raise CorruptBlockError(path, f"{info.size} bytes are too few for a Parquet file")
    begin = max(0, info.size - TAIL_BYTES)
    tail = objects.get_range(path, begin, info.size - begin, etag=info.etag)
    head = tail[:4] if begin == 0 else objects.get_range(path, 0, 4, etag=info.etag)
    if ENCRYPTED in (head, tail[-4:]):
        raise UnsuitableBlockError(path, "its footer is encrypted")
    if head != MAGIC or tail[-4:] != MAGIC:
        raise CorruptBlockError(path, "no Parquet file, or the end is missing: PAR1 is not at both ends")
    size = int.from_bytes(tail[-_FRAME:-4], "little")
    if size > info.size - _FRAME - len(MAGIC):
        raise CorruptBlockError(path, f"its footer should have {size} bytes, the object has {info.size}")
    if size > limit:
        raise UnsuitableBlockError(path, f"its footer has {size} bytes, more than the {limit} that are read")
    if size + _FRAME > len(tail):
        tail = objects.get_range(path, info.size - size - _FRAME, size + _FRAME, etag=info.etag)
    return tail[-size - _FRAME : -_FRAME]


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    groups: tuple[RowGroup, ...]
    sorted_by: tuple[str, ...]
    nulls_first: bool
    metadata: Mapping[str, str]
    meanings: list[LeafMeaning]


def _shape(footer: Struct, *, end: int) -> _Shape:
    """Return the shape of a footer that agrees with itself and with data that ends at `end`. Raises FooterError."""
    if ENCRYPTION_ALGORITHM in footer:
        raise FooterError("it is encrypted: its footer is plain and signed, its columns are not", costly=True)
    orders = structs(footer, 7, "the order of columns")
    nodes = structs(footer, 2, "its schema")
    columns = leaves(nodes, ordered=bool(orders) and all(1 in order for order in orders))
    if not columns:
        raise FooterError("it has no columns", costly=True)
    if orders and len(orders) != len(columns):
        raise FooterError(f"it has orders for {len(orders)} of {len(columns)} columns")
    count(footer, 1, "its version", bits=31)
    rows = count(footer, 3, "the number of rows")
    raw = structs(footer, 4, "its row groups")
    groups = tuple(_row_group(group, columns, end=end) for group in raw)
    if rows != sum(group.rows for group in groups):
        raise FooterError(f"it says {rows} rows, its row groups {sum(group.rows for group in groups)}")
    names, nulls_first = _sorted_by([group for group in raw if group[3]], columns)
    return _Shape(rows, groups, names, nulls_first, _metadata(footer), leaf_meanings(nodes))


def _row_group(group: Struct, columns: list[Leaf], *, end: int) -> RowGroup:
    rows = count(group, 3, "the rows of a row group")
    given = structs(group, 1, "the columns of a row group")
    if len(given) != len(columns):
        raise FooterError(f"a row group has {len(given)} of {len(columns)} columns")
    count(group, 2, "the size of a row group")
    chunks = [chunk(item, leaf, rows=rows, end=end) for item, leaf in zip(given, columns, strict=True)]
    start = min(item.start for item in chunks)
    bounds = {
        leaf.path[0].decode(errors="replace"): Bounds(item.low, item.high, item.nulls)
        for leaf, item in zip(columns, chunks, strict=True)
        if leaf.plain
    }
    return RowGroup(
        rows=rows,
        start=start,
        bytes=max(item.start + item.size for item in chunks) - start,
        uncompressed=sum(item.uncompressed for item in chunks),
        bounds=bounds,
    )


def _sorted_by(groups: list[Struct], columns: list[Leaf]) -> tuple[tuple[str, ...], bool]:
    """Return the order that all row groups with rows declare alike, up to the first column that is descending or
    nested, and whether nulls come first.
    """
    declared = {
        tuple(
            (count(struct, 1, "a sorting column"), struct.get(2), struct.get(3))
            for struct in structs(group, 4, "its order")
        )
        for group in groups
    }
    names: list[str] = []
    first: Any = False
    for number, descending, nulls_first in declared.pop() if len(declared) == 1 else ():
        if number >= len(columns):
            raise FooterError(f"it is sorted by column {number} of {len(columns)}")
        if descending is not False or not columns[number].plain or (names and nulls_first is not first):
            break
        names.append(columns[number].path[0].decode(errors="replace"))
        first = nulls_first
    return tuple(names), first is True


def _metadata(footer: Struct) -> dict[str, str]:
    """Pairs whose key is one of ours. Raises FooterError when one of them is no text."""
    ours: dict[str, str] = {}
    for pair in structs(footer, 5, "its metadata"):
        key, value = need(pair, 1, bytes, "a key of its metadata"), pair.get(2, b"")
        if not key.startswith(METADATA_PREFIX):
            continue
        try:
            ours[key.decode()] = value.decode()
        except (UnicodeDecodeError, AttributeError):
            raise FooterError(f"its metadata {key!a} is not text") from None
    return ours


def short(error: BaseException) -> str:
    """Return the message of a library's error as one short line that is safe to print: it quotes what it read."""
    return cut(printable(" ".join(str(error).split())), 200) or type(error).__name__


# The column that says when a row was: which one it is, its unit, and its bounds.
#
# Times of blocks are epoch microseconds; what is between two microseconds counts for the earlier one.

_TIME_NAMES: Final = ("timestamp", "time", "ts")
_LARGEST: Final = 2**63 - 1


class Scale(NamedTuple):
    """From a column's numbers to microseconds: times `factor`, divided by `divisor`."""

    factor: int
    divisor: int

    def microseconds(self, value: int) -> int:
        """The time of a value."""
        return value * self.factor // self.divisor

    def bounds(self, start: int | None, end: int | None) -> tuple[int, int]:
        """The smallest and the largest value whose time is in `start`..`end`, both ends included."""
        low = -_LARGEST if start is None else -(-start * self.divisor // self.factor)
        high = _LARGEST if end is None else ((end + 1) * self.divisor - 1) // self.factor
        return max(low, -_LARGEST), min(high, _LARGEST)


_SCALES: Final = {"s": Scale(1_000_000, 1), "ms": Scale(1_000, 1), "us": Scale(1, 1), "ns": Scale(1, 1_000)}


def time_column_of(footer: BlockFooter, wanted: str = "") -> str:
    """The column `wanted`, or the only one of timestamps, or one of the usual name. Raises UnsuitableBlockError."""
    path, schema = footer.info.path, footer.schema
    if wanted:
        if wanted not in schema.names or _unit(schema.field(wanted).type) is None:
            raise UnsuitableBlockError(path, f"has no column {wanted[:100]!r} of timestamps or 64-bit integers")
        return wanted
    times = [field.name for field in schema if pa.types.is_timestamp(plain_type(field.type))]
    named = [name for name in _TIME_NAMES if name in schema.names and _unit(schema.field(name).type) is not None]
    if len(times) == 1:
        return str(times[0])
    if found := next((name for name in named if not times or name in times), None):
        return found
    there = f"of timestamps there are {cut(repr(times), 200)}" if times else "there is none of timestamps"
    reason = f"which column is the time? {there[0].upper()}{there[1:]}: name it with --time-column (HTTP: timeColumn)"
    raise UnsuitableBlockError(path, reason)


def registered_time_column(block: Block, footer: BlockFooter, said: str = "") -> str | None:
    """The column that the times of a registered block are of: the one it names (`said`) or that would be taken without
    a name, else the first whose bounds are the block's times, which were registered with its name. None when nothing
    tells.
    """
    try:
        taken = [time_column_of(footer, said)]
    except UnsuitableBlockError:
        # Several columns of time, or none by such a name: the bounds below decide.
        taken = []
    others = [str(field.name) for field in footer.schema if _unit(field.type) is not None]
    for name in dict.fromkeys(taken + others):
        try:
            times = times_of_footer(footer, name) if footer.rows else None
        except UnsuitableBlockError:
            # Rows without a time in it: times that were registered cannot be of this column.
            continue
        if times == (block.min_time, block.max_time) or (times is None and name in taken):
            return name
    return None


def _unit(kind: pa.DataType) -> str | None:
    kind = plain_type(kind)
    if pa.types.is_timestamp(kind):
        return str(kind.unit)
    return "us" if pa.types.is_int64(kind) else None


def is_instant(kind: pa.DataType) -> bool:
    """Return whether values of a time column are moments, and not what a clock of an unknown zone showed."""
    kind = plain_type(kind)
    return pa.types.is_int64(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def scale_of(kind: pa.DataType) -> Scale:
    """That of a time column's values in memory."""
    return _SCALES[_unit(kind) or "us"]


def stored_scale(footer: BlockFooter, column: str) -> Scale:
    """That of the numbers in the file, which is not always that of the Arrow schema: seconds are stored as
    milliseconds.
    """
    position = next(n for n in range(footer.parquet.num_columns) if footer.parquet.schema.column(n).path == column)
    logical = footer.parquet.schema.column(position).logical_type.to_json()
    stored = next((u for u, word in (("ms", "milli"), ("us", "micro"), ("ns", "nano")) if word in logical), None)
    return _SCALES[stored] if stored else scale_of(footer.schema.field(column).type)


def times_of_footer(footer: BlockFooter, column: str) -> tuple[int, int] | None:
    """Inclusive, in epoch microseconds; None when the statistics do not tell. Raises UnsuitableBlockError for rows
    without a time.
    """
    bounds = footer.bounds(column)
    if bounds.nulls:
        raise UnsuitableBlockError(footer.info.path, f"{bounds.nulls} rows have no time in {column[:100]!r}")
    if not isinstance(bounds.low, int) or not isinstance(bounds.high, int) or bounds.nulls is None:
        return None
    scale = stored_scale(footer, column)
    return scale.microseconds(bounds.low), scale.microseconds(bounds.high)
