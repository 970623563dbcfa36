"""Meanings of the columns of a file, by its raw footer, and the identity of a schema that follows from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from compaction.blocks.fingerprint.cells import plain_type
from compaction.blocks.format.footer_shape import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FIXED,
    FLOAT,
    INT32,
    INT64,
    INT96,
    MAX_SHOWN,
)
from compaction.blocks.format.thrift import FooterError, Struct

# The leaves of Arrow types and arrays, in the order in which Parquet has them as columns.
#
# They are named by their paths: `a.b` in a struct, `a.[]` in a list, `a.{}` and `a.{=}` in a map.


class ArrowLeaf(NamedTuple):
    """A leaf of an Arrow schema; `maps`: how many maps it lies in."""

    path: str
    kind: pa.DataType
    maps: int = 0


def arrow_leaves(fields: Iterable[pa.Field]) -> Iterator[ArrowLeaf]:
    """The leaves of the fields of a schema, in the order of Parquet's."""
    for field in fields:
        yield from _inside(ArrowLeaf(escaped(field.name), field.type))


def _inside(leaf: ArrowLeaf) -> Iterator[ArrowLeaf]:
    kind, path, maps = plain_type(leaf.kind), leaf.path, leaf.maps
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _inside(ArrowLeaf(f"{path}.{escaped(field.name)}", field.type, maps))
    elif pa.types.is_map(kind):
        yield from _inside(ArrowLeaf(f"{path}.{{}}", kind.key_type, maps + 1))
        yield from _inside(ArrowLeaf(f"{path}.{{=}}", kind.item_type, maps + 1))
    elif pa.types.is_nested(kind):
        yield from _inside(ArrowLeaf(f"{path}.[]", kind.value_type, maps))
    else:
        yield ArrowLeaf(path, kind, maps)


def with_leaf_types(kind: pa.DataType, path: str, types: Mapping[str, pa.DataType]) -> pa.DataType:
    """The type at a path, the leaves of these paths (`arrow_leaves`) of these types."""
    if path in types:
        return types[path]
    if not any(item.startswith(f"{path}.") for item in types):
        return kind
    kind = plain_type(kind)

    def inner(field: pa.Field, name: str) -> pa.Field:
        return field.with_type(with_leaf_types(field.type, f"{path}.{name}", types))

    if pa.types.is_struct(kind):
        return pa.struct([inner(field, escaped(field.name)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_field, "{}").type, inner(kind.item_field, "{=}"))
    return list_of(kind, inner(kind.value_field, "[]"))


def list_of(kind: pa.DataType, value: pa.Field) -> pa.DataType:
    """A type of lists like this one, of other values."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.list_view(value) if pa.types.is_list_view(kind) else pa.large_list_view(value)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def escaped(name: str) -> str:
    """A name as a part of a path."""
    return name.replace("\\", "\\\\").replace(".", "\\.")


def leaf_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """The values inside of a column: an array for each leaf, in this order; of a dictionary of times its values."""
    if isinstance(array, pa.ExtensionArray):
        yield from leaf_arrays(array.storage)
    elif pa.types.is_dictionary(array.type):
        yield array.dictionary if pa.types.is_timestamp(array.type.value_type) else array
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from leaf_arrays(child)
    elif pa.types.is_map(array.type):
        there = array.drop_null()
        begin, end = (there.offsets[0].as_py(), there.offsets[-1].as_py()) if len(there) else (0, 0)
        yield from leaf_arrays(there.keys.slice(begin, end - begin))
        yield from leaf_arrays(there.items.slice(begin, end - begin))
    elif pa.types.is_nested(array.type):
        yield from leaf_arrays(array.flatten())
    else:
        yield array


# Meanings of the columns of a file, by its raw footer: the logical types that no Arrow type says.
#
# pyarrow reads ENUM, BSON, INTERVAL, GEOMETRY, GEOGRAPHY, VARIANT and times of a day in UTC as bytes, structs and
# plain times, and writes what it reads. So the meaning of each leaf is read off the footer itself, is a part of the
# schema (its identity, and which files may be merged), and stands in the output's footer again
# (`footers_of_outputs`). Leaves are named by their place in the Arrow schema (`arrow_leaves`).
#
# Field numbers are those of parquet.thrift.

LOGICAL_KEY: Final = b"compaction.dev.logical"
"""In the metadata of a schema: JSON of the texts of its leaves, those excepted that have none."""
NOTHING: Final = "NULL"
TIMES_IN_DAYS: Final = "INT96"
EITHER: Final = "us|ns"
RAW: Final = "raw"
NANOSECONDS_TOO: Final = "ns and either"
_READINGS: Final = {
    "us": "(INT96 beyond the years 1677 to 2262)", "ns": "(INT96 finer than microseconds)",
    EITHER: "(INT96 in us or ns)", RAW: "INT96 that no unit holds",
    NANOSECONDS_TOO: "(INT96, some finer than microseconds)",
}  # fmt: skip
"""How INT96 is read (`format.int96`), in words that begin the text of its leaf; the last is of several files only."""
_TYPE, _REPEATED, _NAME, _CHILDREN, _CONVERTED, _SCALE, _PRECISION, _ID, _LOGICAL = 1, 3, 4, 5, 6, 7, 8, 9, 10
_IS_REPEATED: Final = 2
_LIST_TYPES: Final = {3}
_MAP_TYPES: Final = {1, 2}
_VARIANT: Final = 16
_PHYSICAL: Final = {
    BOOLEAN: "BOOLEAN", INT32: "INTEGER", INT64: "INTEGER", INT96: TIMES_IN_DAYS, FLOAT: "FLOAT", DOUBLE: "FLOAT",
    BYTE_ARRAY: "BYTES", FIXED: "BYTES",
}  # fmt: skip
_INTEGERS: Final = {11 + place: (8 << place % 4, place > 3) for place in range(8)}
"""Of the converted types UINT_8 to INT_64: bits, and whether there is a sign."""
_FLOATS: Final = {FLOAT: "float", DOUBLE: "double"}
_UNITS: Final = {1: "ms", 2: "us", 3: "ns"}
_ALGORITHMS: Final = ("SPHERICAL", "VINCENTY", "THOMAS", "ANDOYER", "KARNEY")
_CONVERTED_NAMES: Final = {
    0: "STRING", 4: "ENUM", 6: "DATE", 7: "TIME_MILLIS", 8: "TIME_MICROS", 9: "TIMESTAMP_MILLIS",
    10: "TIMESTAMP_MICROS", **dict.fromkeys(range(11, 19), "INTEGER"), 19: "JSON", 20: "BSON", 21: "INTERVAL",
}  # fmt: skip


def _zoned(name: str) -> Callable[[Struct], str]:
    return lambda item: f"{name}({_UNITS.get(next(iter(item.get(2, {})), 0), '?')}{', UTC' if item.get(1) else ''})"


def _geography(struct: Struct) -> str:
    number = struct.get(2, 0)
    algorithm = _ALGORITHMS[number] if number in range(len(_ALGORITHMS)) else str(number)
    return f"GEOGRAPHY({_text(struct[1])}, {algorithm})" if struct.get(1) else f"GEOGRAPHY({algorithm})"


_LOGICAL_NAMES: Final[Mapping[int, Callable[[Struct], str]]] = {
    1: lambda _: "STRING", 4: lambda _: "ENUM", 5: lambda item: f"DECIMAL scale {item.get(1, 0)}", 6: lambda _: "DATE",
    7: _zoned("TIME"), 8: _zoned("TIMESTAMP"), 10: lambda _: "INTEGER", 11: lambda _: NOTHING, 12: lambda _: "JSON",
    13: lambda _: "BSON", 14: lambda _: "UUID", 15: lambda _: "FLOAT",
    17: lambda item: f"GEOMETRY({_text(item[1])})" if item.get(1) else "GEOMETRY", 18: _geography,
}  # fmt: skip
_SAID_BY_ARROW: Final = ("BOOLEAN", "INTEGER", "FLOAT", "BYTES", "STRING", "DECIMAL", "DATE", NOTHING, TIMES_IN_DAYS)
_UNORDERED: Final = ("GEOMETRY", "GEOGRAPHY", "INTERVAL", "VARIANT")


@dataclass(frozen=True, slots=True)
class LeafMeaning:
    """A leaf of a file. `name`: its path in Parquet, for messages; `text`: what keeps it apart from leaves of the same
    Arrow type, empty for nothing; `meaning`: the whole of it, but for `size`: which number it is, empty for others, as
    a merge may widen it. `beyond_arrow`: whether no Arrow type says what it means; `ids`: of its fields (Iceberg's,
    Protobuf's), which the text has, too; `own` and `variant`: fields 6 and 10 of its node, and of the VARIANT right
    above it. `maps`: how many maps it lies in. `times`: of INT96, how it is read (`format.int96`).
    """

    name: str
    text: str
    meaning: str
    size: str
    beyond_arrow: bool
    ids: tuple[int, ...]
    own: Struct
    variant: Struct | None
    maps: int
    times: str = ""

    @property
    def raw_times(self) -> bool:
        """Return whether the leaf is INT96 that is read as its bytes."""
        return self.times == RAW

    @property
    def ordered(self) -> bool:
        """Return whether the bytes of the leaf are in the order of its values, if these have one."""
        return not self.text.startswith(_UNORDERED) and not self.raw_times


def with_reading(leaf: LeafMeaning, reading: str, *, told: bool) -> LeafMeaning:
    """A leaf of INT96 that is read so; `told`: its text says it. Raw ones have a meaning that no bytes have."""
    text = f"{_READINGS[reading]} {leaf.text}".strip() if told else leaf.text
    return replace(leaf, text=text, times=reading, beyond_arrow=leaf.beyond_arrow or reading == RAW)


def reading_in(text: str) -> str:
    """Return the reading of the leaf of this text, if it is INT96 and not beside other timestamps; else empty."""
    return next((reading for reading, words in _READINGS.items() if text.startswith(words)), "")


def text_with(text: str, reading: str) -> str:
    """The text of a leaf that is read so; without a `reading`: what it means, in whatever unit it is read."""
    before = reading_in(text)
    if before == RAW:
        return text
    plain = text.removeprefix(_READINGS.get(before, "")).strip()
    return f"{_READINGS[reading]} {plain}".strip() if reading else plain


def without_readings(schema: pa.Schema) -> pa.Schema:
    """The schema as `with_texts` makes it, in which INT96 is like other timestamps of its unit."""
    return with_texts(schema, {path: text_with(text, "") for path, text in texts_of(schema).items()})


def joined_text(text: str, other: str) -> str | None:
    """The text of a leaf that holds the values of both, whose types have a common one; None where there is none.

    INT96 beside other timestamps is as these are. What is exact in either unit is read in that of the others; but it
    does not become 64-bit nanoseconds, which Spark does not read: that is what the text of both remembers.
    """
    if text_with(text, "") != text_with(other, ""):
        return None
    readings = {reading_in(text), reading_in(other)}
    if len(readings) == 1:
        return text
    if "" in readings:
        return None if NANOSECONDS_TOO in readings else text_with(text, "")
    if "ns" in readings or NANOSECONDS_TOO in readings:
        return text_with(text, NANOSECONDS_TOO)
    return text_with(text, "us")


def leaf_meanings(nodes: Sequence[Struct]) -> list[LeafMeaning]:
    """Of a footer's schema, whose nodes are a tree. Raises FooterError for a logical type that we do not know."""
    found: list[LeafMeaning] = []
    open_nodes: list[tuple[int, int]] = []  # where the node is, children left
    for place, node in enumerate(nodes):
        if open_nodes:
            open_nodes[-1] = (open_nodes[-1][0], open_nodes[-1][1] - 1)
        if node.get(_CHILDREN, 0) or not place:
            open_nodes.append((place, node.get(_CHILDREN, 0)))
        else:
            found.append(_meaning(nodes, [item for item, _ in open_nodes[1:]], place))
        while open_nodes and open_nodes[-1][1] == 0:
            open_nodes.pop()
    return found


def _meaning(nodes: Sequence[Struct], above: Sequence[int], place: int) -> LeafMeaning:
    path = [*(nodes[item] for item in above), nodes[place]]
    name = _text(b".".join(item[_NAME] for item in path))
    groups = [_kind(item, name) for item in path[:-1]]
    # What repeats inside of a list or a map is a part of it, whatever older writers call that.
    repeated = [item.get(_REPEATED) == _IS_REPEATED for item in path[:-1]]
    own = _kind(path[-1], name) or _PHYSICAL[path[-1][_TYPE]]
    variant = None
    said = [] if own.startswith(_SAID_BY_ARROW) or _is_plain_time(own) else [own]
    for number, kind in enumerate(groups):
        if kind.startswith("VARIANT"):
            # Shredded in another way it is another struct, whose fields must not be widened.
            said.insert(0, f"{kind} of {_shape(nodes, above[number])}")
            variant = path[number] if number == len(groups) - 1 else None
        elif kind not in ("", "LIST", "MAP"):
            raise FooterError(f"column {name[:MAX_SHOWN]!r} lies in a group of the logical type {kind}", costly=True)
    beyond_arrow = bool(said)
    ids = tuple(item[_ID] for item in path if type(item.get(_ID)) is int and item[_ID] >= 0)
    if ids:
        said.append(f"id {'.'.join(map(str, ids))}")
    return LeafMeaning(
        name=name,
        text=" ".join(said),
        meaning=own,
        size=_size(path[-1], own),
        beyond_arrow=beyond_arrow,
        ids=ids,
        own=_annotation(path[-1]),
        variant=None if variant is None else _annotation(variant),
        maps=sum(kind == "MAP" and not inner for kind, inner in zip(groups, repeated, strict=True)),
    )


def _annotation(node: Struct) -> Struct:
    return {number: node[number] for number in (_CONVERTED, _LOGICAL) if number in node}


def _size(node: Struct, kind: str) -> str:
    """The Arrow type of a leaf of this meaning that is a number; empty for others."""
    logical, converted = node.get(_LOGICAL) or {}, node.get(_CONVERTED)
    if kind == "INTEGER":
        said = logical.get(10, {})
        bits, signed = said.get(1) or (64 if node[_TYPE] == INT64 else 32), said.get(2, True)
        if not said and converted in _INTEGERS:
            bits, signed = _INTEGERS[converted]
        return f"{'' if signed else 'u'}int{bits}"
    if kind == "FLOAT":
        return _FLOATS.get(node[_TYPE], "halffloat") if 15 not in logical else "halffloat"
    if kind.startswith("DECIMAL"):
        return f"decimal of {logical[5].get(2, 0) if 5 in logical else node.get(_PRECISION, 0)} digits"
    return ""


def arrow_size(kind: pa.DataType) -> str:
    """The same of an Arrow type."""
    if pa.types.is_decimal(kind):
        return f"decimal of {kind.precision} digits"
    return str(kind) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else ""


def _is_plain_time(kind: str) -> bool:
    """Return whether the Arrow type says the same: timestamps have a zone there, times of a day have none."""
    return kind.startswith("TIMESTAMP(") or (kind.startswith("TIME(") and "UTC" not in kind)


def _kind(node: Struct, name: str) -> str:
    """The logical type of a node in words; what only old writers say keeps the name that it has there."""
    logical, converted = node.get(_LOGICAL) or {}, node.get(_CONVERTED)
    number = next(iter(logical), 0)
    if number == _VARIANT:
        return f"VARIANT({logical[number].get(1, 1)})"
    if number in (2, 3) or (not number and converted in _LIST_TYPES | _MAP_TYPES):
        return "LIST" if number == 3 or converted in _LIST_TYPES else "MAP"
    if number in _LOGICAL_NAMES:
        return _LOGICAL_NAMES[number](logical[number])
    if number:
        raise FooterError(
            f"column {name[:MAX_SHOWN]!r} has a logical type that is not known (number {number} of LogicalType), so "
            f"what it means could be lost: leave the file out, or write the column as a type that it replaces",
            costly=True,
        )
    if converted == 5:
        return f"DECIMAL scale {node.get(_SCALE, 0)}"
    return "" if converted is None else _CONVERTED_NAMES.get(converted, f"converted type {converted}")


def _shape(nodes: Sequence[Struct], top: int) -> str:
    """The nodes of a group, shortened."""
    left, place = 1, top
    shape: list[list[Any]] = []
    while left and place < len(nodes):
        node = nodes[place]
        kind = _kind(node, _text(node[_NAME]))
        named = [_text(node[_NAME]), node.get(_TYPE), node.get(_REPEATED), node.get(_CHILDREN, 0), kind]
        shape.append([*named, _size(node, kind or _PHYSICAL.get(node.get(_TYPE, -1), ""))])
        left += node.get(_CHILDREN, 0) - 1
        place += 1
    names = ", ".join(item[0] for item in shape[1:4])
    return f"{names} ({hashlib.sha256(repr(shape[1:]).encode()).hexdigest()[:8]})" if len(shape) > 3 else names


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def placed(meanings: Sequence[LeafMeaning], schema: pa.Schema) -> dict[str, LeafMeaning]:
    """The leaves by their paths in the Arrow schema of their file. Raises FooterError where these are others."""
    leaves = list(arrow_leaves(schema))
    if len(leaves) != len(meanings):
        raise FooterError(f"its {len(meanings)} columns are read as {len(leaves)}", costly=True)
    for leaf, item in zip(leaves, meanings, strict=True):
        if leaf.maps != item.maps:
            raise FooterError(
                f"column {item.name[:MAX_SHOWN]!r} lies in a MAP without values, which would become a list", costly=True
            )
    return {leaf.path: item for leaf, item in zip(leaves, meanings, strict=True)}


def with_texts(schema: pa.Schema, texts: Mapping[str, str]) -> pa.Schema:
    """The schema, and nothing in its metadata but these texts of its leaves."""
    said = {path: text for path, text in sorted(texts.items()) if text}
    return schema.with_metadata({LOGICAL_KEY: json.dumps(said, ensure_ascii=True).encode()} if said else None)


def texts_of(schema: pa.Schema) -> Mapping[str, str]:
    """The inverse: of the leaves that have one. Raises ValueError."""
    return dict(json.loads((schema.metadata or {}).get(LOGICAL_KEY, b"{}")))


def leaf_texts(field: pa.Field, texts: Mapping[str, str]) -> dict[str, str]:
    """Of the leaves of a column, those excepted that hold nulls only: they go with any."""
    return {leaf.path: texts.get(leaf.path, "") for leaf in arrow_leaves((field,)) if not pa.types.is_null(leaf.kind)}


# The identity of a schema: names, types, nullability, and the logical types that no Arrow type says; whatever a
# reader makes of their storage.


def schema_id(schema: pa.Schema) -> str:
    """32 hexadecimal digits. Equal for dictionaries and plain columns, for large and small texts and lists.

    The order of columns counts; of its metadata only what its leaves mean does (`format.logical`).
    """
    fields: list[Any] = [_field(field) for field in schema]
    if texts := texts_of(schema):
        fields.append(sorted(texts.items()))
    text = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _field(field: pa.Field) -> list[Any]:
    return [field.name, bool(field.nullable), _identity_of_type(field.type)]


def _identity_of_type(kind: pa.DataType) -> Any:
    kind = plain_type(kind)
    t = pa.types
    if t.is_struct(kind):
        return ["struct", [_field(kind.field(position)) for position in range(kind.num_fields)]]
    if t.is_map(kind):
        return [
            "map",
            _identity_of_type(kind.key_type),
            bool(kind.item_field.nullable),
            _identity_of_type(kind.item_type),
        ]
    if t.is_fixed_size_list(kind):
        return ["list", kind.list_size, bool(kind.value_field.nullable), _identity_of_type(kind.value_type)]
    if t.is_list(kind) or t.is_large_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        return ["list", bool(kind.value_field.nullable), _identity_of_type(kind.value_type)]
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "string"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return "binary"
    return str(kind)
