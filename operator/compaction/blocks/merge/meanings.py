"""The meanings of the output's columns: as the sources' footers say them, so its own footer does.

The library writes the logical types that it has Arrow types for. The others are put into the footer that it has
written, whose pages are the same; then the footer is compared with those of the sources, raw with raw: what would be
lost refuses the merge.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import SEEK_END
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.blocks.errors import LogicalTypeLostError, SortKeyError
from compaction.blocks.format.footer_shape import INT96, structs
from compaction.blocks.format.int96 import MAGIC, with_physical_type
from compaction.blocks.format.logical import (
    NOTHING,
    TIMES_IN_DAYS,
    LeafMeaning,
    arrow_leaves,
    arrow_size,
    escaped,
    leaf_meanings,
    placed,
    text_with,
)
from compaction.blocks.format.thrift import Struct, decode_up_to
from compaction.blocks.format.thrift_edit import BINARY, BYTE, I32, STRUCT, TRUTH, Typed, parse, written
from compaction.blocks.merge.footers import FRAME_BYTES, SCHEMA_FIELD, OpenedFooter
from compaction.blocks.merge.schema import unified

_NAME, _CHILDREN, _CONVERTED, _LOGICAL = 4, 5, 6, 10
_BYTES_FIRST: Final = (10, 16)
"""Logical types whose field 1 is a byte: INTEGER (its bits) and VARIANT (its version)."""


@dataclass(frozen=True, slots=True)
class Meanings:
    """The leaves of a merge's output. `paths`: in their order; `sources`: of each file its name and its leaves."""

    schema: pa.Schema
    paths: tuple[str, ...]
    sources: tuple[tuple[str, Mapping[str, LeafMeaning]], ...]

    @classmethod
    def of(cls, footers: Sequence[OpenedFooter], schema: pa.Schema) -> Self:
        """`schema`: the merged one, which says that the files agree."""
        paths = tuple(leaf.path for leaf in arrow_leaves(schema))
        return cls(schema, paths, tuple((footer.input.name, footer.meanings) for footer in footers))

    def wanted(self) -> list[LeafMeaning | None]:
        """Return the meaning that each leaf must have; None where the library writes it right, or no file has more than
        nulls there. Field ids alone are no reason: the library writes them, and the column may be wider than in the
        file that has them.
        """
        said: dict[str, LeafMeaning] = {}
        for _, leaves in self.sources:
            for path, item in leaves.items():
                if item.meaning != NOTHING:
                    said.setdefault(path, item)
        found = [said.get(path) for path in self.paths]
        return [item if item is not None and item.beyond_arrow else None for item in found]

    def check_order(self, sort_key: Sequence[str]) -> None:
        """Raises SortKeyError for a column whose bytes are in no order of its values."""
        wanted = dict(zip(self.paths, self.wanted(), strict=True))
        for name in sort_key:
            wished = wanted.get(escaped(name))
            if wished is not None and not wished.ordered:
                raise SortKeyError(f"sort key column {name}: values of type {_in_words(wished)} have no order")

    def put_into(self, file: IO[bytes]) -> None:
        """Change the footer of an output, a file open for reading and writing, so that its leaves mean what they must.

        Raises LogicalTypeLostError for a leaf that cannot.
        """
        file.seek(-FRAME_BYTES, SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        start = file.seek(-FRAME_BYTES - size, SEEK_END)
        raw = file.read(size)
        wanted = self.wanted()
        if any(wanted):
            raw = _annotated(raw, wanted)
            file.seek(start)
            file.truncate()
            file.write(raw + len(raw).to_bytes(4, "little") + MAGIC)
        self._check(structs(decode_up_to(raw, SCHEMA_FIELD), SCHEMA_FIELD, "its schema"))

    def _check(self, nodes: Sequence[Struct]) -> None:
        found = placed(leaf_meanings(nodes), self.schema)
        sizes = {leaf.path: arrow_size(leaf.kind) for leaf in arrow_leaves(self.schema)}
        for block, leaves in self.sources:
            # A column without a value may be a struct or a list elsewhere: its leaf is none of the output's.
            for path, item in ((path, item) for path, item in leaves.items() if item.meaning != NOTHING):
                if not _is_kept(item, found[path]) or sizes[path] not in ("", found[path].size):
                    raise LogicalTypeLostError(block, item.name, _in_words(item), _in_words(found[path]))


def check_writable(name: str, schema: pa.Schema, meanings: Mapping[str, LeafMeaning]) -> None:
    """Check that the columns of a file would keep their meanings when they are written: tried with no rows.

    Raises LogicalTypeLostError, SchemaConflictError for columns that cannot stand beside each other.
    """
    merged = unified([(name, schema)])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, merged, store_schema=False):
        pass
    paths = tuple(leaf.path for leaf in arrow_leaves(merged))
    Meanings(merged, paths, ((name, meanings),)).put_into(sink)


def _is_kept(source: LeafMeaning, output: LeafMeaning) -> bool:
    """INT96 is written as timestamps where there are others (`format.int96`)."""
    if source.raw_times:
        return output.meaning == TIMES_IN_DAYS
    same = source.meaning == output.meaning or (
        source.meaning == TIMES_IN_DAYS and output.meaning.startswith("TIMESTAMP(") and "UTC" not in output.meaning
    )
    return same and text_with(source.text, "") == output.text


def _in_words(meaning: LeafMeaning) -> str:
    said = meaning.text if meaning.meaning in meaning.text else f"{meaning.meaning} {meaning.text}".strip()
    return f"{said} ({meaning.size})" if meaning.size else said


def _annotated(raw: bytes, wanted: Sequence[LeafMeaning | None]) -> bytes:
    """A footer whose leaves have these logical types, in their order; None leaves one as it is."""
    footer = parse(raw)
    nodes: list[Typed] = footer[SCHEMA_FIELD][1][1]
    left = iter(wanted)
    times: list[str] = []
    open_nodes: list[list[Any]] = []  # the node, children left
    for place, node in enumerate(nodes):
        if open_nodes:
            open_nodes[-1][1] -= 1
        children = node.get(_CHILDREN, (I32, 0))[1]
        if children or not place:
            open_nodes.append([node, children])
        elif (meaning := next(left)) is not None:
            _annotate(node, meaning.own)
            if meaning.variant is not None:
                _annotate(open_nodes[-1][0], meaning.variant)
            if meaning.raw_times:
                names = [*(above[_NAME][1] for above, _ in open_nodes[1:]), node[_NAME][1]]
                times.append(b".".join(names).decode(errors="replace"))
        while open_nodes and open_nodes[-1][1] == 0:
            open_nodes.pop()
    return with_physical_type(written(footer), times, INT96) if times else written(footer)


def _annotate(node: Typed, said: Struct) -> None:
    node.pop(_CONVERTED, None)
    node.pop(_LOGICAL, None)
    if _CONVERTED in said:
        node[_CONVERTED] = (I32, said[_CONVERTED])
    if _LOGICAL in said:
        node[_LOGICAL] = (
            STRUCT,
            {number: (STRUCT, _typed(item, number in _BYTES_FIRST)) for number, item in said[_LOGICAL].items()},
        )


def _typed(value: Struct, byte_first: bool = False) -> Typed:
    """The parameters of a logical type, with the types that parquet.thrift gives them."""
    found: Typed = {}
    for number, item in value.items():
        if isinstance(item, bool):
            found[number] = (TRUTH, item)
        elif isinstance(item, int):
            found[number] = (BYTE, bytes([item])) if byte_first and number == 1 else (I32, item)
        elif isinstance(item, bytes):
            found[number] = (BINARY, item)
        else:
            found[number] = (STRUCT, _typed(item))
    return found
