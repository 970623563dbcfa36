"""Arrow columns as hashes: a 64-bit number per row that says what the value is, however it is stored.

`cells(array, keys)` gives an unsigned 64-bit number for each row of a column, 0 for a null. It depends on the column's
name, on the kind of its type and on the value, and on nothing else: not on dictionaries, chunks, offsets, what lies
under a null, the width of an integer or of a float, the unit of a timestamp, or the names inside of lists. Not equal:
an integer and the same number as a float or as text; 0.0 and -0.0 (their bits differ, and a rewrite keeps bits). All
NaN are one value.

The arithmetic is that of unsigned 64-bit numbers, modulo 2^64. A value is multiplied with an odd key of its column,
mixed (fold, multiply, fold) and moved by another key. Each step can be undone, so different words of a column stay
different, and what two columns say of a row can be added (`rows`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from compaction.exceptions import UnsupportedColumnError
from compaction.stores.blocks.fingerprint.lookups import Lookup
from compaction.stores.blocks.fingerprint.texts import text_hashes

Words = npt.NDArray[np.uint64]

MIX: Final = np.uint64(0x9FB21C651E98DF25)
"""Multiplier of the mix (odd; of xxh3's rrmxmx)."""
_HIGH: Final = np.uint64(32)
_LOW: Final = np.uint64(29)
_TOP: Final = np.uint64(1 << 63)
_NAN: Final = np.uint64(0x7FF8000000000000)
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_MILLISECONDS: Final = 86_400_000
_SAMPLE: Final = 512
_TEXTS: Final = frozenset(
    kind.id
    for kind in (
        pa.string(), pa.large_string(), pa.string_view(),
        pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1),
    )
)  # fmt: skip
_ONE_WORD: Final = frozenset(
    kind.id
    for kind in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"),
        pa.timestamp("us"), pa.duration("us"),
    )
)  # fmt: skip
_SPARSE: Final = 2
"""A dictionary longer than so many times its rows is not hashed as a whole; the rows are decoded instead."""


@dataclass(slots=True)
class ColumnKeys:
    """What tells one column from the others: an odd multiplier and an offset, from its name and kind of type.

    `place` multiplies positions in lists. `children` are those of nested types, by position. `known`: the dictionary
    hashed last, with its hashes.
    """

    path: str
    multiply: np.uint64
    offset: np.uint64
    place: np.uint64
    children: tuple[ColumnKeys, ...] = ()
    known: Lookup | None = field(default=None, repr=False)


def column_keys(name: str, kind: pa.DataType) -> ColumnKeys:
    """The keys of a column. Raises UnsupportedColumnError for a type without a defined hash (unions, intervals)."""
    kind = plain_type(kind)
    seed = f"{name}\0{_kind_name(name, kind)}".encode()
    words = np.frombuffer(xxhash.xxh3_128_digest(seed) + xxhash.xxh3_64_digest(seed, seed=1), dtype="<u8")
    children: tuple[ColumnKeys, ...] = ()
    if pa.types.is_struct(kind):
        # A dot in a name is escaped, or {a.b: {c}} and {a: {b.c}} were one.
        inner = [
            (kind.field(i).name.replace("\\", "\\\\").replace(".", "\\."), kind.field(i))
            for i in range(kind.num_fields)
        ]
        children = tuple(column_keys(f"{name}.{label}", child.type) for label, child in inner)
    elif pa.types.is_map(kind):
        children = (column_keys(f"{name}.{{}}", kind.key_type), column_keys(f"{name}.{{=}}", kind.item_type))
    elif _is_list(kind):
        children = (column_keys(f"{name}.[]", kind.value_type),)
    odd = np.uint64(1)
    return ColumnKeys(name, words[0] | odd, words[1], words[2] | odd, children)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values: without dictionaries, run ends and extensions."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def cells(array: pa.Array[Any], keys: ColumnKeys) -> Words:
    """`len(array)` words, the caller's to change."""
    if isinstance(array, pa.ExtensionArray):
        return cells(array.storage, keys)
    if pa.types.is_run_end_encoded(array.type):
        return cells(pc.run_end_decode(array), keys)
    if pa.types.is_dictionary(array.type):
        return _dictionary_cells(array, keys)
    if _repeats(array):
        return _dictionary_cells(array.dictionary_encode(), keys)
    if pa.types.is_null(array.type) or array.null_count == len(array):
        return np.zeros(len(array), np.uint64)
    words = mix(_keyed(array, keys))
    words += keys.offset
    if array.null_count:
        words *= _valid(array)
    return words


def has_words(array: pa.Array[Any]) -> bool:
    """Whether all its values are there, and each is one word."""
    return array.type.id in _ONE_WORD and array.null_count == 0


def add_words(sums: Words, array: pa.Array[Any], keys: ColumnKeys, spare: Words) -> None:
    """For what `has_words`: add the cells to `sums`, less the column's offset. `spare`: as many words, for use here."""
    words = _words(array, keys.path, keys.multiply)
    sums += _mix(words, spare)


def mix(words: Words) -> Words:
    """Each word spread over all 64 bits, in place; different words stay different."""
    return _mix(words, np.empty_like(words))


def _mix(words: Words, spare: Words) -> Words:
    np.right_shift(words, _HIGH, out=spare)
    words ^= spare
    words *= MIX
    np.right_shift(words, _LOW, out=spare)
    words ^= spare
    return words


def _keyed(array: pa.Array[Any], keys: ColumnKeys) -> Words:
    """The values times the column's key, not yet mixed, nulls not regarded."""
    kind = array.type
    if pa.types.is_struct(kind):
        words = _struct_words(array, keys)
    elif pa.types.is_map(kind) or _is_list(kind):
        words = _list_words(array, keys)
    elif _is_text(kind):
        words = text_hashes(array)
    elif pa.types.is_decimal(kind):
        words = _decimal_words(array)
    else:
        return _words(array, keys.path, keys.multiply)
    words *= keys.multiply
    return words


def _words(array: pa.Array[Any], path: str, factor: np.uint64) -> Words:
    """Values of one word as that word: numbers, times, truth; times `factor`. A copy."""
    kind = array.type
    if pa.types.is_boolean(kind):
        words = _bits(array.buffers()[1], array.offset, len(array)).astype(np.uint64)
    elif pa.types.is_floating(kind):
        words = _float_words(array)
    elif pa.types.is_date64(kind):
        words = (_values(array, np.dtype("<i8")) // _DAY_MILLISECONDS).view(np.uint64)
    else:
        words = _whole_words(array)
        unit = getattr(kind, "unit", None)
        if unit is not None and _NANOSECONDS[unit] > 1:
            with np.errstate(over="ignore"):
                factor = factor * np.uint64(_NANOSECONDS[unit])
    return words * factor


def _whole_words(array: pa.Array[Any]) -> Words:
    """Integers, and times in their unit; the memory of the array itself when that says it."""
    width = np.dtype(f"<{'u' if pa.types.is_unsigned_integer(array.type) else 'i'}{array.type.byte_width}")
    values = _values(array, width)
    if width.kind == "i":
        return values.astype(np.int64, copy=False).view(np.uint64)
    words: Words = values.astype(np.uint64, copy=False)
    if width.itemsize == 8 and len(words) and words.max() >= _TOP:
        words = words.copy()  # otherwise 2^64 - 1 were -1
        words[words >= _TOP] *= MIX
    return words


def _float_words(array: pa.Array[Any]) -> Words:
    with np.errstate(invalid="ignore"):
        # A widened NaN may come as another NaN.
        values = _values(array, np.dtype(f"<f{array.type.byte_width}")).astype(np.float64, copy=False)
    words: Words = values.view(np.uint64)
    missing = np.isnan(values)
    if bool(missing.any()):
        words = words.copy()
        words[missing] = _NAN
    return words


def _decimal_words(array: pa.Array[Any]) -> Words:
    """Two's complement, lowest word first. A word that only repeats the sign of the one below it counts for nothing."""
    size = array.type.byte_width
    if size < 8:
        return _values(array, np.dtype(f"<i{size}")).astype(np.int64).view(np.uint64)
    table = _values(array, np.dtype(f"({size // 8},)<u8")).reshape(len(array), size // 8)
    total = table[:, 0].copy()
    for position in range(1, size // 8):
        sign = (table[:, position - 1].view(np.int64) >> np.int64(63)).view(np.uint64)
        total += mix(table[:, position] ^ sign) * np.uint64(MIX + np.uint64(2 * position))
    return total


def _struct_words(array: pa.Array[Any], keys: ColumnKeys) -> Words:
    total = np.zeros(len(array), np.uint64)
    for position, child in enumerate(keys.children):
        total += cells(array.field(position), child)
    return total


def _list_words(array: pa.Array[Any], keys: ColumnKeys) -> Words:
    """Elements in their places: each is moved by its position and mixed, then they are summed; the length as well."""
    lengths = _lengths(array)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    places = (np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths) + 1).view(np.uint64)
    if pa.types.is_map(array.type):
        entries = _map_entries(array)
        elements = cells(entries[0], keys.children[0]) + cells(entries[1], keys.children[1])
    else:
        elements = cells(array.flatten(), keys.children[0])
    places *= keys.place
    elements += places
    running = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(mix(elements), dtype=np.uint64, out=running[1:])
    total: Words = running[ends]
    total -= running[starts]
    total += lengths.view(np.uint64)
    return total


def _lengths(array: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Of lists and maps; 0 for a null."""
    if not pa.types.is_map(array.type):
        return np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64)
    offsets = np.asarray(array.offsets, np.int64)
    lengths = offsets[1:] - offsets[:-1]
    return lengths * _valid(array).view(np.int64) if array.null_count else lengths


def _repeats(array: pa.Array[Any]) -> bool:
    """Whether it is cheaper to find equal texts than to hash each of them, by a sample."""
    if len(array) < 4 * _SAMPLE or not _is_text(array.type) or pa.types.is_fixed_size_binary(array.type):
        return False
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return False
    return len(array.slice(0, _SAMPLE).dictionary_encode().dictionary) < _SAMPLE // 2


def _map_entries(array: pa.Array[Any]) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Keys and values of all maps that are there; what lies under a null map is left out."""
    if array.null_count:
        array = array.filter(pc.is_valid(array))
    begin, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
    return array.keys.slice(begin, end - begin), array.items.slice(begin, end - begin)


def looked_up(array: pa.Array[Any], keys: ColumnKeys) -> Lookup | None:
    """The cells of the array's dictionary, learnt now or before; None when it is cheaper to hash row by row."""
    dictionary = array.dictionary
    if keys.known is None or not keys.known.knows(dictionary):
        if len(dictionary) > _SPARSE * len(array) or len(dictionary) == 0:
            return None
        keys.known = Lookup.of(dictionary, cells(dictionary, keys))
    return keys.known


def _dictionary_cells(array: pa.Array[Any], keys: ColumnKeys) -> Words:
    known = looked_up(array, keys)
    if known is None:
        return cells(array.dictionary_decode(), keys)
    return known.hashes.take(known.places(array.indices, keys.path))


def _values(array: pa.Array[Any], width: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values buffer of a fixed-width array, as it lies in memory: no copy, anything under nulls."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(0, width)
    return np.frombuffer(buffer, width, count=len(array), offset=array.offset * width.itemsize)


def _valid(array: pa.Array[Any]) -> Words:
    """1 for a value, 0 for a null."""
    if array.buffers()[0] is None:
        return np.asarray(pc.is_valid(array), np.uint64)
    return _bits(array.buffers()[0], array.offset, len(array)).astype(np.uint64)


def _bits(buffer: pa.Buffer | None, offset: int, length: int) -> npt.NDArray[np.uint8]:
    if buffer is None:
        return np.zeros(length, np.uint8)
    first, skip = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8, count=(skip + length + 7) // 8, offset=first)
    return np.unpackbits(packed, count=skip + length, bitorder="little")[skip:]


def _is_text(kind: pa.DataType) -> bool:
    return kind.id in _TEXTS


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return any(
        is_one(kind)
        for is_one in (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    )


def _kind_name(name: str, kind: pa.DataType) -> str:
    """What types have in common that may stand for each other."""
    t = pa.types
    if t.is_timestamp(kind):
        return "instant" if kind.tz else "timestamp"
    if t.is_decimal(kind):
        return f"decimal {kind.scale}"
    names = (
        ("null", t.is_null), ("truth", t.is_boolean), ("integer", t.is_integer), ("float", t.is_floating),
        ("text", _is_text), ("date", t.is_date), ("time", t.is_time), ("duration", t.is_duration),
        ("struct", t.is_struct), ("map", t.is_map), ("list", _is_list),
    )  # fmt: skip
    for label, is_one in names:
        if is_one(kind):
            return label
    raise UnsupportedColumnError(name, str(kind))
