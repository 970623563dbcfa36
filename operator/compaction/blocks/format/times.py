"""The column that says when a row was: which one it is, its unit, and its bounds.

Times of blocks are epoch microseconds; what is between two microseconds counts for the earlier one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from compaction.api.text.safe import cut
from compaction.blocks.errors import UnsuitableBlockError
from compaction.blocks.fingerprint.cells import plain_type
from compaction.blocks.format.footer import BlockFooter
from compaction.blocks.model import Block

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
        taken = []
    others = [str(field.name) for field in footer.schema if _unit(field.type) is not None]
    for name in dict.fromkeys(taken + others):
        try:
            times = times_of_footer(footer, name) if footer.rows else None
        except UnsuitableBlockError:
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
    """Whether values of a time column are moments, and not what a clock of an unknown zone showed."""
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
