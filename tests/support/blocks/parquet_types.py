"""Every Arrow type that Parquet can store, with values to be written, merged and read by others.

`TYPES`: by name, a column of `ROWS` values with nulls among them. `NOT_READ`, `NOT_EXACT`: what a reader cannot read,
whoever wrote it and however: tests show it on files that pyarrow wrote with its defaults.
"""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.format.thrift_edit import BINARY, BYTE, I32, STRUCT, TRUTH, Typed, parse, written
from compaction.blocks.merge import output
from compaction.blocks.merge.footers import MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge

ROWS: Final = 600
GROUP_ROWS: Final = 250
KEY: Final = "id"
READ_BY_ALL: Final = frozenset({"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY"})
ENCODINGS: Final = (output.DICTIONARY, "PLAIN", "DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY")
_CONTEXT: Final = Context(prec=80)


def _few(number: int) -> bool:
    return number % 11 == 5


def _column(kind: pa.DataType, value: Callable[[int], Any]) -> pa.Array:
    return pa.array([None if _few(number) else value(number) for number in range(ROWS)], kind)


def _spread(low: int, high: int) -> Callable[[int], int]:
    """Numbers from one bound to the other, both included, in no order."""
    return lambda number: low + (high - low) * (number * 7919 % ROWS) // (ROWS - 1)


def _decimal(kind: pa.DataType) -> pa.Array:
    digits = _spread(-(10**kind.precision) + 1, 10**kind.precision - 1)
    return _column(kind, lambda number: Decimal(digits(number)).scaleb(-kind.scale, _CONTEXT))


def _extension(kind: pa.BaseExtensionType, value: Callable[[int], Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, _column(kind.storage_type, value))


def _lists(kind: pa.DataType) -> pa.Array:
    return _column(kind, lambda number: [number, None, -number][: number % 4])


def _text(number: int) -> str:
    return f"text-{number * 7919 % ROWS:05d}-ä€"


def _bytes(number: int) -> bytes:
    return b"\x00\xff" + _text(number).encode()


def _noise(number: int, width: int) -> bytes:
    return hashlib.shake_128(str(number).encode()).digest(width)


def _times(kind: pa.DataType, per_second: int) -> pa.Array:
    """From before 1970 to 2100, with all digits that the unit has."""
    seconds = _spread(-10_000_000, 4_102_444_800)
    return _column(kind, lambda number: seconds(number) * per_second + (number * 7919) % per_second)


def _types() -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    for bits in (8, 16, 32, 64):
        signed, unsigned = getattr(pa, f"int{bits}")(), getattr(pa, f"uint{bits}")()
        found[str(signed)] = _column(signed, _spread(-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
        found[str(unsigned)] = _column(unsigned, _spread(0, (1 << bits) - 1))
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        found[str(kind)] = _column(kind, lambda number: [number / 3, -number / 8, float("inf"), -0.0][number % 4])
    found["bool"] = _column(pa.bool_(), lambda number: number % 3 == 0)
    for kind in (
        *(pa.decimal32(7, 2), pa.decimal64(15, 3), pa.decimal128(9, 0), pa.decimal128(18, 4), pa.decimal128(38, 10)),
        *(pa.decimal256(38, 5), pa.decimal256(50, 5), pa.decimal256(76, 10)),
    ):
        found[str(kind)] = _decimal(kind)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        found[str(kind)] = _column(kind, _text)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        found[str(kind)] = _column(kind, _bytes)
    for width in (1, 16, 20):
        found[f"binary({width})"] = _column(pa.binary(width), partial(_noise, width=width))
    return found | _temporal() | _coded() | _nested() | _extensions()


def _temporal() -> dict[str, pa.Array]:
    found = {
        "date32": _column(pa.date32(), _spread(-100_000, 100_000)),
        "date64": _column(pa.date64(), lambda number: _spread(-100_000, 100_000)(number) * 86_400_000),
        "time32[s]": _column(pa.time32("s"), _spread(0, 86_399)),
        "time32[ms]": _column(pa.time32("ms"), _spread(0, 86_399_999)),
        "time64[us]": _column(pa.time64("us"), _spread(0, 86_399_999_999)),
        "time64[ns]": _column(pa.time64("ns"), _spread(0, 86_399_999_999_999)),
    }
    for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        found[f"duration[{unit}]"] = _column(pa.duration(unit), _spread(-per_second * 1000, per_second * 100_000))
        for zone in (None, "UTC", "Europe/Berlin", "+05:30"):
            kind = pa.timestamp(unit, zone)
            found[str(kind)] = _times(kind, per_second)
    return found


def _coded() -> dict[str, pa.Array]:
    texts = _column(pa.string(), lambda number: _text(number % 7))
    return {
        "dictionary of texts": texts.dictionary_encode(),
        "dictionary, narrow": texts.dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
        "dictionary of large texts": texts.cast(pa.large_string()).dictionary_encode(),
        "dictionary of bytes": texts.cast(pa.binary()).dictionary_encode(),
        "dictionary of numbers": _column(pa.int64(), lambda number: number % 7).dictionary_encode(),
    }


def _nested() -> dict[str, pa.Array]:
    struct = pa.struct(
        [("a", pa.int32()), ("b", pa.list_(pa.string())), ("c", pa.struct([("d", pa.decimal128(9, 2))]))]
    )
    return {
        "list": _lists(pa.list_(pa.int64())),
        "large_list": _lists(pa.large_list(pa.int16())),
        "list of large texts": _column(pa.list_(pa.large_string()), lambda number: [_text(number)] * (number % 3)),
        "list of lists": _column(pa.list_(pa.list_(pa.float64())), lambda number: [[0.5], None, []][: number % 4]),
        "fixed_size_list": _column(pa.list_(pa.float32(), 3), lambda number: [number, 0.5, -number]),
        "struct": _column(
            struct, lambda number: {"a": number, "b": [_text(number), None], "c": {"d": Decimal(number) / 4}}
        ),
        "map": _column(pa.map_(pa.string(), pa.int64()), lambda number: [("a", number), ("b", None)][: number % 3]),
        "list of structs": _column(
            pa.list_(pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.uint32())])),
            lambda number: [{"at": number, "n": number}, {"at": None, "n": None}][: number % 3],
        ),
        "null": pa.nulls(ROWS),
    }


def _extensions() -> dict[str, pa.Array]:
    return {
        "uuid": _extension(pa.uuid(), lambda number: uuid.UUID(int=number * 7**40).bytes),
        "json": _extension(pa.json_(), lambda number: f'{{"n": {number}}}'),
        "bool8": _extension(pa.bool8(), lambda number: number % 2),
        "tensor": _extension(pa.fixed_shape_tensor(pa.int32(), [2]), lambda number: [number, -number]),
        "opaque": _extension(pa.opaque(pa.int32(), "kind", "vendor"), lambda number: number),
    }


TYPES: Final[Mapping[str, pa.Array]] = _types()

_TOO_LARGE: Final = ("decimal256(50, 5)", "decimal256(76, 10)")
_OFFSETS: Final = tuple(name for name in TYPES if "+05:30" in name)
_NANOSECONDS: Final = tuple(name for name in TYPES if name.startswith("timestamp[ns"))
NOT_READ: Final[Mapping[str, Mapping[str, str]]] = {
    "pyarrow": {},
    "duckdb": {},
    "polars": dict.fromkeys(_TOO_LARGE, "precision") | dict.fromkeys(_OFFSETS, "unable to parse time zone"),
    "spark": {
        **dict.fromkeys(_TOO_LARGE, "DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION"),
        **dict.fromkeys(("time32[s]", "time32[ms]"), r"INT32 \(TIME\(MILLIS,false\)\)"),
        **dict.fromkeys(("time64[us]", "time64[ns]"), "UNSUPPORTED_TIME_TYPE"),
        **dict.fromkeys(_NANOSECONDS, r"TIMESTAMP\(NANOS"),
        "halffloat": r"FIXED_LEN_BYTE_ARRAY \(FLOAT16\)",
        "uuid": r"FIXED_LEN_BYTE_ARRAY \(UUID\)",
    },
}
"""Of each reader: the type, and what it says of a plain file of it."""
NOT_EXACT: Final[Mapping[str, tuple[str, ...]]] = {"duckdb": _TOO_LARGE}
"""Of each reader: what it makes something else of, whoever wrote it (floats of large decimals)."""
_DURATIONS: Final = frozenset(name for name in TYPES if name.startswith("duration"))


def readable(reader: str) -> tuple[str, ...]:
    """Names of the types that a reader can read."""
    return tuple(name for name in TYPES if name not in NOT_READ[reader])


def expected(reader: str, name: str) -> list[Any]:
    """What a reader finds in a column; one without durations or UUIDs finds the numbers and texts that they are."""
    column = TYPES[name]
    if name in _DURATIONS and reader in {"duckdb", "spark"}:
        return values(column.cast(pa.int64()))
    if name == "uuid" and reader == "duckdb":
        return [None if value is None else str(uuid.UUID(bytes=value)) for value in values(column)]
    return values(column)


def table(names: tuple[str, ...] = tuple(TYPES)) -> pa.Table:
    """A column of each type, and the sort key."""
    return pa.table({KEY: pa.array(range(ROWS), pa.int64()), **{name: TYPES[name] for name in names}})


def plain(rows: pa.Table) -> bytes:
    """The rows as pyarrow writes them when it is told nothing."""
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return sink.getvalue()


def merged(rows: pa.Table, encoding: str = "") -> bytes:
    """The rows after a merge of two files that share them, in several row groups; every column that can have the
    encoding has it, the others what the merge chooses.
    """
    halves = [rows.slice(0, ROWS // 3), rows.slice(ROWS // 3)]
    coded = encoding in {"", output.DICTIONARY}
    real = output.candidates

    def forced(kind: pa.DataType) -> tuple[str, ...]:
        return (encoding,) if encoding in real(kind) else real(kind)

    inputs = [MergeInput(name=str(n), open=_opener(half, coded), sort_key=(KEY,)) for n, half in enumerate(halves)]
    sink = io.BytesIO()
    with mock.patch.object(output, "candidates", forced):
        merge(inputs, sink, MergeSettings(sort_key=(KEY,), max_group_rows=GROUP_ROWS))
    return sink.getvalue()


def _opener(rows: pa.Table, coded: bool) -> Callable[[], io.BytesIO]:
    sink = io.BytesIO()
    pq.write_table(rows, sink, use_dictionary=coded, row_group_size=GROUP_ROWS)
    return lambda: io.BytesIO(sink.getvalue())


def written_as(data: bytes, column: str) -> set[str]:
    """The encodings of a column's data pages, over all row groups."""
    metadata = pq.read_metadata(io.BytesIO(data))
    found: set[str] = set()
    for group in range(metadata.num_row_groups):
        for leaf in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(leaf)
            if chunk.path_in_schema.split(".")[0] == column:
                found |= set(chunk.encodings)
                assert set(chunk.encodings) <= READ_BY_ALL, (column, chunk.encodings)
    return found


def values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """What a column holds, whichever of the types that Arrow has a reader has chosen; times to the microsecond."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_temporal(array.type) and getattr(array.type, "unit", "") == "ns":
        coarse = pa.time64("us") if pa.types.is_time(array.type) else array.type
        if pa.types.is_timestamp(array.type):
            coarse = pa.timestamp("us", array.type.tz)
        elif pa.types.is_duration(array.type):
            coarse = pa.duration("us")
        array = pc.cast(array, coarse, safe=False)
    return [_same(value) for value in array.to_pylist()]


def _same(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return dict(value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, float):
        return repr(value)
    return value


# Columns of every logical type of Parquet that Arrow has no type for, as other writers have them.
#
# pyarrow writes their bytes, numbers and structs; then the footer is given the types. `COLUMNS`: by name, the values
# and the fields of the column's node: 6 (converted type) and 10 (logical type), those of a struct for the struct
# itself.

TYPED_ROWS: Final = 60


def _typed_column(kind: pa.DataType, *values: Any) -> pa.Array:
    return pa.array([None if number % 7 == 3 else values[number % len(values)] for number in range(TYPED_ROWS)], kind)


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
    "enum": (_typed_column(pa.binary(), b"red", b"green"), _converted(4) | _logical(4)),
    "enum, old": (_typed_column(pa.binary(), b"red", b"green"), _converted(4)),
    "json": (_typed_column(pa.binary(), *(text.encode() for text in TEXTS)), _converted(19) | _logical(12)),
    "bson": (_typed_column(pa.binary(), b"\x05\x00\x00\x00\x00"), _converted(20) | _logical(13)),
    "interval": (_typed_column(pa.binary(12), bytes(range(12)), bytes(12)), _converted(21)),
    "uuid": (_typed_column(pa.binary(16), bytes(range(16)), bytes(16)), _logical(14)),
    "time, utc, ms": (_typed_column(pa.int32(), 0, 86_399_999), _converted(7) | _time(7, 1)),
    "time, utc, us": (_typed_column(pa.int64(), 0, 86_399_999_999), _converted(8) | _time(7, 2)),
    "time, utc, ns": (_typed_column(pa.int64(), 0, 86_399_999_999_999), _time(7, 3)),
    "time, old, ms": (_typed_column(pa.int32(), 0, 86_399_999), _converted(7)),
    "time, local, us": (_typed_column(pa.int64(), 0, 86_399_999_999), _time(7, 2, utc=False)),
    "timestamp, old, ms": (_typed_column(pa.int64(), -1, 253_402_297_200_000), _converted(9)),
    "timestamp, old, us": (_typed_column(pa.int64(), -1, 253_402_297_200_000_000), _converted(10)),
    "timestamp, utc, us": (_typed_column(pa.int64(), -1, 253_402_297_200_000_000), _time(8, 2)),
    "timestamp, local, ns": (_typed_column(pa.int64(), -1, 1 << 62), _time(8, 3, utc=False)),
    "text, old": (_typed_column(pa.binary(), b"a", b"b"), _converted(0)),
    "unsigned, old": (_typed_column(pa.int32(), 1, -1), _converted(13)),
    "decimal of 4 bytes": (
        _typed_column(pa.int32(), 12345, -1),
        {**_converted(5), 7: (I32, 2), 8: (I32, 9), **_logical(5, _1=(I32, 2), _2=(I32, 9))},
    ),
    "decimal, old": (_typed_column(pa.int64(), 12345, -1), {**_converted(5), 7: (I32, 4), 8: (I32, 18)}),
    "decimal of any bytes": (
        _typed_column(pa.binary(), b"\x01\x02\x03", b"\xff"),
        {**_converted(5), 7: (I32, 1), 8: (I32, 20), **_logical(5, _1=(I32, 1), _2=(I32, 20))},
    ),
    "float of 2 bytes": (_typed_column(pa.binary(2), b"\x00\x3c", b"\x00\x80"), _logical(15)),
    "geometry": (_typed_column(pa.binary(), *POINTS), _logical(17)),
    "geometry, srid": (_typed_column(pa.binary(), *POINTS), _logical(17, _1=(BINARY, b"srid:5070"))),
    "geography": (_typed_column(pa.binary(), *POINTS), _logical(18, _1=(BINARY, b"OGC:CRS84"), _2=(I32, 2))),
    "variant": (_typed_column(_VARIANT_KIND, VARIANT_VALUES), _VARIANT),
    "field id": (_typed_column(pa.int64(), 1, 2), {9: (I32, 17)}),
}


def typed_file(columns: Mapping[str, tuple[pa.Array, Typed]], **options: Any) -> bytes:
    """A file with these columns, whose nodes have these fields, and a sort key."""
    rows = pa.table(
        {KEY: pa.array(range(TYPED_ROWS), pa.int64()), **{name: item for name, (item, _) in columns.items()}}
    )
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
