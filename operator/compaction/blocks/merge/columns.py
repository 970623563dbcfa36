"""Columns while they are merged: texts of small dictionaries are numbers, everything else is as Arrow has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.errors import SortKeyError

# Columns while they are merged: strings of small dictionaries are numbers, everything else is as Arrow has it.
#
# Files keep a dictionary per row group. Here a coded column has one for the whole merge, its `Memo`, and its rows are
# int32 codes into it: to cut, to join, to sort and to gather them never touches a string. The memo is bounded: a
# column whose values do not repeat outgrows it, and is plain from then on; codes that were given out stay valid.

CODE: Final = pa.int32()
"""Type of the codes. No logical type of a coded column is an integer, so the type of a part says which it is."""

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Rows:
    """Some rows, a column each of the merge's schema; a coded column may be codes here and plain elsewhere."""

    columns: tuple[pa.Array, ...]
    count: int

    def slice(self, start: int, count: int) -> Rows:
        """A view of `count` rows from `start`; nothing is copied."""
        if not start and count == self.count:
            return self
        return Rows(tuple(column.slice(start, count) for column in self.columns), count)

    def take(self, rows: pa.Array) -> Rows:
        """The rows of these numbers, in this order: a copy."""
        return Rows(tuple(pc.take(column, rows, boundscheck=False) for column in self.columns), len(rows))

    def copy(self) -> Rows:
        """The rows, free of the memory of those beside them."""
        return Rows(tuple(pa.concat_arrays([column]) for column in self.columns), self.count)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of memory that the rows take (of views: their share). Counted once: with hundreds of columns it costs
        as much as reading some rows.
        """
        return sum(column.nbytes for column in self.columns)


class MemoLimits(NamedTuple):
    """The limits of a memo: bytes and number of its values. The number bounds what looking up a dictionary costs, so a
    column of ever new values is given up early.
    """

    bytes: int
    values: int


class Memo:
    """The values of one coded column, each once, in the order in which they came."""

    def __init__(self, kind: pa.DataType, *, most: MemoLimits) -> None:
        self.values = pa.array([], kind)
        self.full = False
        self._most = most
        self._ranks: Words = np.empty(0, np.uint64)
        self._last: dict[int, tuple[pa.Array, pa.Array]] = {}

    def codes(self, array: pa.DictionaryArray, *, source: int) -> pa.Array | None:
        """The array as codes; None when its values do not fit any more. `source`: whose dictionary is remembered."""
        if self.full:
            return None
        known = self._last.get(source)
        if known is not None and known[0].equals(array.dictionary):
            mapping = known[1]
        else:
            found = self._mapping(array.dictionary.cast(self.values.type))
            if found is None:
                self._last.clear()
                return None
            mapping = found
            self._last[source] = (array.dictionary, mapping)
        return pc.take(mapping, array.indices, boundscheck=False)

    def forget(self, source: int) -> None:
        """The source has been read to its end."""
        self._last.pop(source, None)

    def _mapping(self, values: pa.Array) -> pa.Array | None:
        self.full = len(values) > self._most.values
        if self.full:
            return None
        at = pc.index_in(values, value_set=self.values)
        if at.null_count:
            new = pc.unique(pc.filter(values, pc.and_(pc.is_null(at), pc.is_valid(values))))
            size, count = self.values.nbytes + new.nbytes, len(self.values) + len(new)
            self.full = size > self._most.bytes or count > self._most.values
            if self.full:
                return None
            added = pc.add(pc.index_in(values, value_set=new), len(self.values))
            self.values = pa.concat_arrays([self.values, new])
            at = pc.coalesce(at, added)
        return at.cast(CODE)

    def decode(self, codes: pa.Array) -> pa.Array:
        """The values of these codes."""
        return pc.take(self.values, codes, boundscheck=False)

    def ranks(self) -> Words:
        """The place of each code in the order of the values (of strings: by their bytes)."""
        if len(self._ranks) != len(self.values):
            order = pc.sort_indices(self.values).to_numpy()
            self._ranks = np.empty(len(order), np.uint64)
            self._ranks[order] = np.arange(len(order), dtype=np.uint64)
        return self._ranks


@dataclass(frozen=True)
class Columns:
    """The columns of one merge: `schema` of the rows that come out, `keys` the places of the sort key in it, `memos` of
    the coded columns.
    """

    schema: pa.Schema
    keys: tuple[int, ...]
    memos: dict[int, Memo] = field(default_factory=dict)

    @cached_property
    def _kinds(self) -> Sequence[tuple[str, pa.DataType]]:
        """Name and type of each; to ask Arrow for them costs as much as a small column."""
        return [(item.name, item.type) for item in self.schema]

    @classmethod
    def of(cls, schema: pa.Schema, sort_key: Sequence[str], *, coded: Sequence[str], most: MemoLimits) -> Self:
        """`coded`: names of the columns that are coded (strings and binaries only), `most`: of the memo of each.

        Raises SortKeyError.
        """
        for name in sort_key:
            if name not in schema.names:
                raise SortKeyError(f"sort key column {name}: none of the blocks has it")
            if not _has_order(schema.field(name).type):
                raise SortKeyError(f"sort key column {name}: values of type {schema.field(name).type} have no order")
        memos = {
            place: Memo(field.type, most=most)
            for place, field in enumerate(schema)
            if field.name in coded and is_codable(field.type)
        }
        return cls(schema, tuple(schema.names.index(name) for name in sort_key), memos)

    def rows(self, batch: pa.RecordBatch, *, source: int) -> Rows:
        """A batch of one of the files, as rows of this merge. ArrowInvalid for values that the column cannot hold."""
        columns = []
        there = dict(zip(batch.schema.names, batch.columns, strict=True))
        for place, (name, kind) in enumerate(self._kinds):
            column = there.get(name)
            if column is None:
                columns.append(with_required(pa.nulls(batch.num_rows, kind)))
            else:
                columns.append(self._column(place, kind, column, source))
        return Rows(tuple(columns), batch.num_rows)

    def _column(self, place: int, kind: pa.DataType, column: pa.Array, source: int) -> pa.Array:
        memo = self.memos.get(place)
        if isinstance(column, pa.ExtensionArray) and not column.type.equals(kind):
            column = column.storage  # of files that differ in it; it has none of the kernels that follow
        if memo is not None and not memo.full:
            if not pa.types.is_dictionary(column.type):
                column = column.dictionary_encode()
            codes = memo.codes(column, source=source)
            if codes is not None:
                return codes
        if column.type.equals(kind):
            return column
        return with_required(column.cast(kind))

    def forget(self, source: int) -> None:
        """Called when a source has been read to its end."""
        for memo in self.memos.values():
            memo.forget(source)

    def is_coded(self, place: int, part: pa.Array) -> bool:
        """Return whether this part of a column is codes."""
        return place in self.memos and part.type.equals(CODE)

    def plain(self, place: int, part: pa.Array) -> pa.Array:
        """The part with its values."""
        return self.memos[place].decode(part) if self.is_coded(place, part) else part

    def joined(self, place: int, parts: Sequence[pa.Array]) -> pa.Array:
        """Parts of one column in a row: codes if all of them are."""
        if len(parts) == 1:
            return parts[0]
        if place in self.memos and not all(part.type.equals(CODE) for part in parts):
            parts = [self.plain(place, part) for part in parts]
        return pa.concat_arrays(parts)

    def join(self, parts: Sequence[Rows]) -> Rows:
        """Rows one after the other; copies unless there is one part."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.columns for part in parts), strict=True)
        return Rows(
            tuple(self.joined(place, column) for place, column in enumerate(columns)), sum(p.count for p in parts)
        )

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """The rows with their values."""
        arrays = [self.plain(place, part) for place, part in enumerate(rows.columns)]
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)


def with_required(array: pa.Array) -> pa.Array:
    """The same rows; required fields of structs that are null have some value there, as the writer wants them (a struct
    that a file lacks is made of nulls all the way down).
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, with_required(array.storage))
    if not _has_required(kind):
        return array
    if pa.types.is_struct(kind):
        fields = list(kind)
        children = [with_required(array.field(place)) for place in range(len(fields))]
        filled = [item if field.nullable else _filled(item) for field, item in zip(fields, children, strict=True)]
        return pa.StructArray.from_arrays(filled, fields=fields, mask=array.is_null())
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [array.keys, with_required(array.items)], fields=[kind.key_field, kind.item_field]
        )
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        entries = with_required(array.values)
    else:
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], offset=array.offset, children=[entries])


def _filled(array: pa.Array) -> pa.Array:
    """An array without nulls: what lies under them counts for a value, which nothing reads."""
    kind = array.type
    if array.null_count == 0:
        return array
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _filled(array.storage))
    if pa.types.is_dictionary(kind):
        values = array.dictionary if len(array.dictionary) else _filled(pa.nulls(1, kind.value_type))
        places = array.indices.fill_null(0)
        return pa.DictionaryArray.from_arrays(places, values, ordered=kind.ordered)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([array.field(place) for place in range(kind.num_fields)], fields=list(kind))
    children = None
    if pa.types.is_map(kind):
        children = [pa.StructArray.from_arrays([array.keys, array.items], fields=[kind.key_field, kind.item_field])]
    elif pa.types.is_nested(kind):
        children = [array.values]
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), [None, *buffers[1:]], offset=array.offset, children=children)


def _has_required(kind: pa.DataType) -> bool:
    """Return whether the type has a struct inside that has a required field."""
    if pa.types.is_struct(kind):
        return any(not field.nullable or _has_required(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_required(kind.item_type)
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _has_required(kind.value_type)


def is_codable(kind: pa.DataType) -> bool:
    """Return whether a column of this type can be read as a dictionary."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def has_width(kind: pa.DataType) -> bool:
    """Return whether each value of this type takes the same memory."""
    try:
        return int(kind.bit_width) > 0
    except ValueError:
        # pyarrow has no `bit_width` for types of variable width, and raises.
        return False


def _has_order(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    try:
        # One null is tried, because a list of types kept here would have to follow the versions of pyarrow.
        pc.rank(pa.nulls(1, kind), tiebreaker="dense")
    except pa.ArrowException:
        return False
    return True


# Texts as the dictionaries in which files have them: which can be read so, and which are the same one.
#
# pyarrow's reader copies the dictionary of a row group for each batch. A caller that keeps what it computed for a
# dictionary (its hashes, its codes) recognizes one by its memory: with a copy per batch it would compute it each
# time, which cost more than all the rest of hashing (5,000 names in batches of 8,192 rows).

ROWS_PER_VALUE: Final = 4
"""So many rows of a row group share a value, on average, where its dictionary pays."""
_PAGE_ROWS: Final = 1024
_SLACK: Final = 2
"""A dictionary takes a little more in a file than in memory at most: a text's length has four bytes there, too."""
_PLACE: Final = 4
"""Bytes of a place in a dictionary, at most."""
_TEXTS: Final = frozenset({"STRING", "NONE", "JSON", "ENUM"})
"""Logical types of byte arrays that are read as texts or binaries."""


def coded_texts(metadata: pq.FileMetaData) -> list[str]:
    """Paths of the texts, nested ones too, whose values lie in dictionaries in every row group: only these can be read
    as dictionaries (the library has no way to do it for some other encodings), and nested ones only one row group at a
    time.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    texts = [leaf for leaf in range(metadata.num_columns) if _is_text(metadata.schema.column(leaf))]
    return [
        metadata.schema.column(leaf).path
        for leaf in texts
        if groups and all(group.column(leaf).has_dictionary_page for group in groups)
    ]


def not_repeating(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> set[str]:
    """Those of the columns, which the file is asked for as dictionaries, whose dictionary does not pay: it has too many
    values, or the writer gave it up half way, which no footer says. Reads a page of the row group. Raises
    ArrowException.

    A column is what the library makes of it, whatever it was asked for: texts of extension types (JSON) never come as
    dictionaries, those of repeated fields lie in lists, and neither is a column whose dictionary does not pay.
    """
    found = file.metadata.row_group(group)
    batches = file.iter_batches(_PAGE_ROWS, row_groups=[group], columns=list(columns), use_threads=False)
    if not columns or (batch := next(batches, None)) is None:
        return set()
    chunks = {found.column(leaf).path_in_schema: found.column(leaf) for leaf in range(found.num_columns)}
    read = {name: batch.column(batch.schema.names.index(name)) for name in columns if name in batch.schema.names}
    dictionaries = {name: item.dictionary for name, item in read.items() if pa.types.is_dictionary(item.type)}
    few = max(found.num_rows // ROWS_PER_VALUE, 1)
    return {
        name
        for name, item in dictionaries.items()
        if len(item) > few or _was_given_up(item, chunks[name], found.num_rows)
    }


def _was_given_up(dictionary: pa.Array, chunk: pq.ColumnChunkMetaData, rows: int) -> bool:
    """Return whether the chunk has more than its dictionary and a place in it for each row: a writer's dictionary is
    full at a mebibyte or so, and the values that come then stand as they are.
    """
    return bool(chunk.total_uncompressed_size > _SLACK * dictionary.nbytes + _PLACE * rows)


def _is_text(column: pq.ColumnSchema) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY" and column.logical_type.type in _TEXTS)


class SteadyDictionaries:
    """Remembers the last dictionary of each column of one file."""

    def __init__(self) -> None:
        self._known: dict[int, pa.Array] = {}

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; a dictionary that equals the one before it in the column is that one."""
        columns = list(batch.columns)
        for place, column in enumerate(columns):
            if not pa.types.is_dictionary(column.type):
                continue
            known = self._known.get(place)
            if known is not None and known.equals(column.dictionary):
                columns[place] = pa.DictionaryArray.from_arrays(
                    column.indices, known, ordered=column.type.ordered, safe=False
                )
            else:
                self._known[place] = column.dictionary
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
