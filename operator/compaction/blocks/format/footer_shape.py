"""Checks that a decoded footer agrees with itself: the schema is a tree, and every column chunk is of its column.

Field numbers are those of parquet.thrift. What is checked here is what the library takes for granted: it ends the
process when a chunk's type is not that of its column, or when statistics have the wrong size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from compaction.blocks.format.thrift import FooterError, Struct

MAX_DEPTH: Final = 100
MAX_NODES: Final = 10_000
MAX_SHOWN: Final = 100
"""Bytes of a name that an error shows."""
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
_SIZES: Final = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}
_FORMATS: Final = {BOOLEAN: "<?", INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}
_UNSIGNED: Final = range(11, 15)
"""Converted types UINT_8 to UINT_64."""
_DECIMAL: Final = 5
_REPEATED: Final = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of the file: `path` from the top, physical `kind` and, for FIXED, its `size`."""

    path: tuple[bytes, ...]
    kind: int
    size: int
    plain: bool
    """Of the top, one value or null in each row."""
    unsigned: bool
    ordered: bool
    """Its bounds are in an order that we know."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column of a row group. `low`, `high`: None when unknown; `nulls` likewise."""

    start: int
    size: int
    uncompressed: int
    low: Any
    high: Any
    nulls: int | None


def need(value: Struct, number: int, kind: type, what: str) -> Any:
    """A field that must be there. Raises FooterError."""
    found = value.get(number)
    if type(found) is not kind:
        raise FooterError(f"{what} is missing or of the wrong type")
    return found


def count(value: Struct, number: int, what: str, *, bits: int = 63) -> int:
    """A number that must be there, not negative and of so many bits. Raises FooterError."""
    found: int = need(value, number, int, what)
    if not 0 <= found < 1 << bits:
        raise FooterError(f"{what} is {found}")
    return found


def structs(value: Struct, number: int, what: str) -> list[Struct]:
    """A list of structs; empty when the field is not there. Raises FooterError."""
    found = value.get(number, [])
    if not isinstance(found, list) or any(type(item) is not dict for item in found):
        raise FooterError(f"{what} is not a list of structs")
    return found


def leaves(schema: Sequence[Struct], *, ordered: bool) -> list[Leaf]:
    """The columns, in their order. `ordered`: the file says that its bounds are in the order of their types."""
    if not 1 <= len(schema) <= MAX_NODES:
        raise FooterError(f"its schema has {len(schema)} nodes, allowed are 1 to {MAX_NODES}", costly=bool(schema))
    found: list[Leaf] = []
    open_nodes: list[list[Any]] = []  # name, children left
    for position, node in enumerate(schema):
        name = need(node, 4, bytes, "the name of a column")
        if position and not open_nodes:
            raise FooterError("its schema has nodes without a parent")
        if open_nodes:
            open_nodes[-1][1] -= 1
        children = node.get(5, 0)
        if type(children) is not int or not 0 <= children < len(schema):
            raise FooterError(f"a node of its schema has {children} children")
        if node.get(3, 0) not in (0, 1, _REPEATED):
            raise FooterError("a node of its schema is neither required, optional nor repeated")
        if children or not position:
            open_nodes.append([name, children])
        else:
            path = (*(node[0] for node in open_nodes[1:]), name)
            found.append(_leaf(path, node, ordered=ordered))
        if len(open_nodes) > MAX_DEPTH:
            raise FooterError(f"its schema is nested deeper than {MAX_DEPTH}", costly=True)
        while open_nodes and open_nodes[-1][1] == 0:
            open_nodes.pop()
    if open_nodes:
        raise FooterError("its schema lacks nodes")
    return found


def _leaf(path: tuple[bytes, ...], node: Struct, *, ordered: bool) -> Leaf:
    kind = need(node, 1, int, "the type of a column")
    if kind not in range(8):
        raise FooterError(f"a column is of the unknown type {kind}")
    size = _SIZES.get(kind, 0) if kind != FIXED else count(node, 2, "the length of a column's values", bits=31)
    if kind == FIXED and size == 0:
        raise FooterError("the values of a column have no length")
    converted, logical = node.get(6), node.get(10, {})
    if type(logical) is not dict:
        raise FooterError("the logical type of a column is none")
    integer = logical.get(10)
    unsigned = converted in _UNSIGNED or (type(integer) is dict and integer.get(2) is False)
    known = kind not in {INT96, FIXED} and converted != _DECIMAL and _DECIMAL not in logical
    plain = len(path) == 1 and node.get(3, 0) != _REPEATED
    return Leaf(path, kind, size, plain, unsigned, ordered and known)


def chunk(value: Struct, leaf: Leaf, *, rows: int, end: int) -> ColumnChunk:
    """One column of a row group; data ends at `end`. Raises FooterError."""
    name = b".".join(leaf.path)[:MAX_SHOWN].decode(errors="replace")
    if 1 in value:
        raise FooterError("its data lies in other files", costly=True)
    if 8 in value or 9 in value:
        raise FooterError(f"column {name!r} is encrypted", costly=True)
    meta: Struct = need(value, 3, dict, f"the metadata of {name!r}")
    if meta.get(1) != leaf.kind or type(meta.get(1)) is not int:
        raise FooterError(f"{name!r} is of another type in a row group")
    if meta.get(3) != list(leaf.path):
        raise FooterError(f"{name!r} is called otherwise in a row group")
    encodings = need(meta, 2, list, f"the encodings of {name!r}")
    if any(type(encoding) is not int or not 0 <= encoding < 16 for encoding in encodings):
        raise FooterError(f"{name!r} has an unknown encoding")
    if count(meta, 4, f"the compression of {name!r}") > 7:
        raise FooterError(f"{name!r} has an unknown compression")
    values = count(meta, 5, f"the number of values of {name!r}")
    if leaf.plain and values != rows:
        raise FooterError(f"{name!r} has {values} values in {rows} rows")
    uncompressed = count(meta, 6, f"the size of {name!r}", bits=48)
    size = count(meta, 7, f"the compressed size of {name!r}", bits=48)
    start = count(meta, 9, f"the place of {name!r}", bits=48)
    if values == 0:
        # Without pages there is no place; writers give 0.
        return ColumnChunk(4, 0, uncompressed, None, None, None)
    dictionary = meta.get(11)
    if dictionary is not None and count(meta, 11, f"the dictionary of {name!r}", bits=48) >= 4:
        # Some writers give 0 for none.
        start = min(start, dictionary)
    if start < 4 or start + size > end:
        raise FooterError(f"bytes {start} to {start + size} should hold {name!r}, data ends at {end}")
    for offset, length in ((4, 5), (6, 7)):
        # Page indexes: both numbers or none of them, inside of the file.
        if offset in value or length in value:
            place, many = count(value, offset, "a page index", bits=48), count(value, length, "a page index", bits=31)
            if place < 4 or place + many > end:
                raise FooterError(f"a page index of {name!r} lies outside of the file")
    low, high, nulls = _statistics(meta, leaf, values=values, name=name)
    return ColumnChunk(start, size, uncompressed, low, high, nulls)


def _statistics(meta: Struct, leaf: Leaf, *, values: int, name: str) -> tuple[Any, Any, int | None]:
    if 12 not in meta:
        return None, None, None
    statistics: Struct = need(meta, 12, dict, f"the statistics of {name!r}")
    nulls = statistics.get(3)
    if nulls is not None and (type(nulls) is not int or not 0 <= nulls <= values):
        raise FooterError(f"{name!r} has {nulls} nulls in {values} values")
    for number in (1, 2, 5, 6):
        bound = statistics.get(number)
        if bound is not None and (type(bound) is not bytes or (leaf.size and len(bound) != leaf.size)):
            raise FooterError(f"the statistics of {name!r} have a value of the wrong size")
    low, high = statistics.get(6), statistics.get(5)
    if low is None and high is None and leaf.kind in {INT32, INT64} and not leaf.unsigned:
        # What writers gave before the order was defined; for signed numbers it is the same.
        low, high = statistics.get(2), statistics.get(1)
    if not leaf.ordered or low is None or high is None:
        return None, None, nulls
    low, high = _plain(low, leaf), _plain(high, leaf)
    if (isinstance(low, float) and (math.isnan(low) or math.isnan(high))) or low > high:
        return None, None, nulls
    return low, high, nulls


def _plain(value: bytes, leaf: Leaf) -> Any:
    if leaf.kind == BYTE_ARRAY:
        return value
    if leaf.unsigned and leaf.kind in {INT32, INT64}:
        return int.from_bytes(value, "little")
    return struct.unpack(_FORMATS[leaf.kind], value)[0]
