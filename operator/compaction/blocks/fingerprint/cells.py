"""Arrow columns as hashes: a 64-bit number for each row, the same for the same value however it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from compaction.blocks.errors import UnsupportedColumnError
from compaction.blocks.fingerprint.values import bits_of, decimal_words, mix, mix_into, number_words, text_hashes

# Hashes of values that lie in a dictionary: computed once, then looked up by index.

Words = npt.NDArray[np.uint64]
_COMBINED: Final = 8192
"""Entries of a table for two columns or more, at most: 64 KiB, which stay in a core's cache."""
OUTSIDE: Final = "an index lies outside of its dictionary"
Places = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A dictionary and its entries' hashes; the last of `hashes`, one more than there are entries, is a null's."""

    dictionary: pa.Array[Any]
    hashes: Words

    @classmethod
    def of(cls, dictionary: pa.Array[Any], hashes: Words) -> Lookup:
        """`hashes`: of the entries."""
        return cls(dictionary, np.append(hashes, np.uint64(0)))

    def knows(self, other: pa.Array[Any]) -> bool:
        """Return whether the other dictionary is the same memory. The known one keeps its memory, so no address means
        two things.
        """
        mine = self.dictionary
        if len(mine) != len(other) or mine.offset != other.offset or mine.type != other.type:
            return False
        places = [[(b.address, b.size) if b is not None else None for b in item.buffers()] for item in (mine, other)]
        return places[0] == places[1]

    def places(self, indices: pa.Array[Any], path: str) -> Places:
        """Return the place of the hash of each row. Raises UnsupportedColumnError for an index outside of the
        dictionary.
        """
        width = np.dtype(indices.type.to_pandas_dtype()).itemsize
        buffer = indices.buffers()[1]
        if buffer is None or len(indices) == 0:
            return np.zeros(0, np.uint64)
        # Unsigned: a negative index would count from the end.
        places: Places = np.frombuffer(buffer, f"<u{width}", count=len(indices), offset=indices.offset * width)
        if indices.null_count:
            null = indices.is_null().to_numpy(zero_copy_only=False)
            places = np.where(null, np.uint64(len(self.dictionary)), places)
            outside = bool((places[~null] >= len(self.dictionary)).any())
        else:
            outside = int(places.max()) >= len(self.dictionary)
        if outside:
            raise UnsupportedColumnError(path, OUTSIDE)
        return places.view(np.int64) if places.itemsize == 8 else places


class Combiner:
    """Several columns with few values each are looked up as one: a place in the table of the sums of their hashes.

    Keeps the tables as long as the columns' own stay the same.
    """

    def __init__(self) -> None:
        self._known: list[tuple[tuple[Words, ...], Words]] = []

    def of(self, looked: Sequence[tuple[Words, Places]]) -> list[tuple[Words, Places]]:
        """Fewer tables and places whose hashes add up to the same sums."""
        groups: list[list[tuple[Words, Places]]] = []
        size = _COMBINED + 1
        for item in sorted(looked, key=lambda item: len(item[0])):
            if size * len(item[0]) > _COMBINED:
                groups.append([])
                size = 1
            groups[-1].append(item)
            size *= len(item[0])
        tables = [
            (tuple(hashes for hashes, _ in group), self._table([hashes for hashes, _ in group])) for group in groups
        ]
        self._known = tables
        return [(table, _places(group)) for (_, table), group in zip(tables, groups, strict=True)]

    def _table(self, parts: Sequence[Words]) -> Words:
        if len(parts) == 1:
            return parts[0]
        for known, table in self._known:
            if len(known) == len(parts) and all(item is other for item, other in zip(known, parts, strict=True)):
                return table
        sums = parts[0]
        for part in parts[1:]:
            sums = np.add.outer(sums, part).reshape(-1)
        return sums


def _places(group: Sequence[tuple[Words, Places]]) -> Places:
    """The places in the table of a group; a single one's own, as they are."""
    places = group[0][1]
    if len(group) > 1:
        places = places.astype(np.uint32)
        for hashes, more in group[1:]:
            places *= np.uint32(len(hashes))
            places += more.astype(np.uint32, copy=False)
    return places


# Arrow columns as hashes: a 64-bit number per row that says what the value is, however it is stored.
#
# `cells(array, keys)` gives an unsigned 64-bit number for each row of a column, 0 for a null. It depends on the
# column's name, on the kind of its type and on the value, and on nothing else: not on dictionaries, chunks, offsets,
# what lies under a null, the width of an integer or of a float, the unit of a timestamp, or the names inside of
# lists. Not equal: an integer and the same number as a float or as text; 0.0 and -0.0 (their bits differ, and a
# rewrite keeps bits). All NaN are one value.
#
# The arithmetic is that of unsigned 64-bit numbers, modulo 2^64. A value is multiplied with an odd key of its column,
# mixed (fold, multiply, fold) and moved by another key. Each step can be undone, so different words of a column stay
# different, and what two columns say of a row can be added (`rows`).

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
    """The keys that distinguish one column from the others: an odd multiplier and an offset, from its name and kind of
    type.

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
    # Before dictionaries: one of nulls only is empty, and tells nothing of its rows.
    if pa.types.is_null(array.type) or array.null_count == len(array):
        return np.zeros(len(array), np.uint64)
    if pa.types.is_dictionary(array.type):
        return _dictionary_cells(array, keys)
    if _repeats(array):
        return _dictionary_cells(array.dictionary_encode(), keys)
    words = mix(_keyed(array, keys))
    words += keys.offset
    if array.null_count:
        words *= _valid(array)
    return words


def has_words(array: pa.Array[Any]) -> bool:
    """Return whether all values of the array are there, and each is one word."""
    return array.type.id in _ONE_WORD and array.null_count == 0


def add_words(sums: Words, array: pa.Array[Any], keys: ColumnKeys, spare: Words) -> None:
    """For what `has_words`: add the cells to `sums`, less the column's offset. `spare`: as many words, for use here."""
    words = number_words(array, keys.multiply)
    sums += mix_into(words, spare)


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
        words = decimal_words(array)
    else:
        return number_words(array, keys.multiply)
    words *= keys.multiply
    return words


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
    """Return whether finding equal texts is cheaper than hashing each of them, by a sample."""
    if len(array) < 4 * _SAMPLE or not _is_text(array.type) or pa.types.is_fixed_size_binary(array.type):
        return False
    if _is_view(array.type):
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
    known, indices = looked_up(array, keys), array.indices
    if known is None:
        # Only the entries in use, each once: to decode the rows would repeat a long text as often as it is there.
        used = pc.unique(indices).drop_null()
        dictionary = array.dictionary
        if _is_view(dictionary.type):  # nothing takes from these
            dictionary = dictionary.cast(pa.large_binary())
        try:
            dictionary = dictionary.take(used)
        except pa.ArrowIndexError:
            raise UnsupportedColumnError(keys.path, OUTSIDE) from None
        known, indices = Lookup.of(dictionary, cells(dictionary, keys)), pc.index_in(indices, used)
    return known.hashes.take(known.places(indices, keys.path))


def _valid(array: pa.Array[Any]) -> Words:
    """1 for a value, 0 for a null."""
    if array.buffers()[0] is None:
        return np.asarray(pc.is_valid(array), np.uint64)
    return bits_of(array.buffers()[0], array.offset, len(array)).astype(np.uint64)


def _is_text(kind: pa.DataType) -> bool:
    return kind.id in _TEXTS


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return any(
        is_one(kind)
        for is_one in (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    )


def _kind_name(name: str, kind: pa.DataType) -> str:
    """Return the name that is common to all types that may stand for each other."""
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
