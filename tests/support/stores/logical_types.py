"""Columns of every logical type of Parquet that Arrow has no type for, as other writers have them.

pyarrow writes their bytes, numbers and structs; then the footer is given the types. `COLUMNS`: by name, the values and
the fields of the column's node: 6 (converted type) and 10 (logical type), those of a struct for the struct itself.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.blocks.format.thrift_edit import BINARY, BYTE, I32, STRUCT, TRUTH, Typed, parse, written

ROWS: Final = 60
KEY: Final = "id"


def _column(kind: pa.DataType, *values: Any) -> pa.Array:
    return pa.array([None if number % 7 == 3 else values[number % len(values)] for number in range(ROWS)], kind)


def _logical(number: int, **parameters: tuple[int, Any]) -> Typed:
    return {10: (STRUCT, {number: (STRUCT, {int(name[1:]): value for name, value in parameters.items()})})}


def _converted(number: int) -> Typed:
    return {6: (I32, number)}


def _time(number: int, unit: int, *, utc: bool = True) -> Typed:
    return _logical(number, _1=(TRUTH, utc), _2=(STRUCT, {unit: (STRUCT, {})}))


POINT: Final = bytes.fromhex("0101000000000000000000f03f0000000000000040")
POINTS: Final = (POINT, POINT[:5] + POINT[13:] + POINT[5:13])
TEXTS: Final = ('{"a": 1}', "[2]")
_VARIANT: Final = _logical(16, _1=(BYTE, b"\x01"))
VARIANT_VALUES: Final = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}
_VARIANT_KIND: Final = pa.struct([pa.field("metadata", pa.binary(), nullable=False), ("value", pa.binary())])

COLUMNS: Final[Mapping[str, tuple[pa.Array, Typed]]] = {
    "enum": (_column(pa.binary(), b"red", b"green"), _converted(4) | _logical(4)),
    "enum, old": (_column(pa.binary(), b"red", b"green"), _converted(4)),
    "json": (_column(pa.binary(), *(text.encode() for text in TEXTS)), _converted(19) | _logical(12)),
    "bson": (_column(pa.binary(), b"\x05\x00\x00\x00\x00"), _converted(20) | _logical(13)),
    "interval": (_column(pa.binary(12), bytes(range(12)), bytes(12)), _converted(21)),
    "uuid": (_column(pa.binary(16), bytes(range(16)), bytes(16)), _logical(14)),
    "time, utc, ms": (_column(pa.int32(), 0, 86_399_999), _converted(7) | _time(7, 1)),
    "time, utc, us": (_column(pa.int64(), 0, 86_399_999_999), _converted(8) | _time(7, 2)),
    "time, utc, ns": (_column(pa.int64(), 0, 86_399_999_999_999), _time(7, 3)),
    "time, old, ms": (_column(pa.int32(), 0, 86_399_999), _converted(7)),
    "time, local, us": (_column(pa.int64(), 0, 86_399_999_999), _time(7, 2, utc=False)),
    "timestamp, old, ms": (_column(pa.int64(), -1, 253_402_297_200_000), _converted(9)),
    "timestamp, old, us": (_column(pa.int64(), -1, 253_402_297_200_000_000), _converted(10)),
    "timestamp, utc, us": (_column(pa.int64(), -1, 253_402_297_200_000_000), _time(8, 2)),
    "timestamp, local, ns": (_column(pa.int64(), -1, 1 << 62), _time(8, 3, utc=False)),
    "text, old": (_column(pa.binary(), b"a", b"b"), _converted(0)),
    "unsigned, old": (_column(pa.int32(), 1, -1), _converted(13)),
    "decimal of 4 bytes": (
        _column(pa.int32(), 12345, -1),
        {**_converted(5), 7: (I32, 2), 8: (I32, 9), **_logical(5, _1=(I32, 2), _2=(I32, 9))},
    ),
    "decimal, old": (_column(pa.int64(), 12345, -1), {**_converted(5), 7: (I32, 4), 8: (I32, 18)}),
    "decimal of any bytes": (
        _column(pa.binary(), b"\x01\x02\x03", b"\xff"),
        {**_converted(5), 7: (I32, 1), 8: (I32, 20), **_logical(5, _1=(I32, 1), _2=(I32, 20))},
    ),
    "float of 2 bytes": (_column(pa.binary(2), b"\x00\x3c", b"\x00\x80"), _logical(15)),
    "geometry": (_column(pa.binary(), *POINTS), _logical(17)),
    "geometry, srid": (_column(pa.binary(), *POINTS), _logical(17, _1=(BINARY, b"srid:5070"))),
    "geography": (_column(pa.binary(), *POINTS), _logical(18, _1=(BINARY, b"OGC:CRS84"), _2=(I32, 2))),
    "variant": (_column(_VARIANT_KIND, VARIANT_VALUES), _VARIANT),
    "field id": (_column(pa.int64(), 1, 2), {9: (I32, 17)}),
}


def typed_file(columns: Mapping[str, tuple[pa.Array, Typed]], **options: Any) -> bytes:
    """A file with these columns, whose nodes have these fields, and a sort key."""
    rows = pa.table({KEY: pa.array(range(ROWS), pa.int64()), **{name: item for name, (item, _) in columns.items()}})
    sink = io.BytesIO()
    pq.write_table(rows, sink, store_schema=False, **options)
    return with_nodes(sink.getvalue(), {name.encode(): fields for name, (_, fields) in columns.items()})


def with_nodes(data: bytes, fields: Mapping[bytes, Typed]) -> bytes:
    """The file with these fields in the nodes of its schema, by their names."""
    size = int.from_bytes(data[-8:-4], "little")
    footer = parse(data[-8 - size : -8])
    for node in footer[2][1][1]:
        node.update(fields.get(node[4][1], {}))
    raw = written(footer)
    return data[: -8 - size] + raw + len(raw).to_bytes(4, "little") + b"PAR1"


def nodes_of(data: bytes) -> dict[bytes, Typed]:
    """The logical types of the nodes that have one, by their names."""
    size = int.from_bytes(data[-8:-4], "little")
    nodes = parse(data[-8 - size : -8])[2][1][1]
    return {node[4][1]: {number: node[number] for number in (6, 10) if number in node} for node in nodes}


SHREDDED: Final = pa.struct([*_VARIANT_KIND, pa.field("typed_value", pa.decimal128(9, 2))])
"""A VARIANT that pyarrow would write otherwise: its decimals of nine digits have four bytes in it."""
SHREDDED_VALUE: Final = {**VARIANT_VALUES, "typed_value": Decimal("1.25")}
VARIANT: Final = _VARIANT
