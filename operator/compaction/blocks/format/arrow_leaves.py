"""The leaves of Arrow types and arrays, in the order in which Parquet has them as columns.

They are named by their paths: `a.b` in a struct, `a.[]` in a list, `a.{}` and `a.{=}` in a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from compaction.blocks.fingerprint.cells import plain_type


class ArrowLeaf(NamedTuple):
    """A leaf of an Arrow schema; `maps`: how many maps it lies in."""

    path: str
    kind: pa.DataType
    maps: int = 0


def arrow_leaves(fields: Iterable[pa.Field]) -> Iterator[ArrowLeaf]:
    """The leaves of the fields of a schema, in the order of Parquet's."""
    for field in fields:
        yield from _inside(ArrowLeaf(escaped(field.name), field.type))


def _inside(one: ArrowLeaf) -> Iterator[ArrowLeaf]:
    kind, path, maps = plain_type(one.kind), one.path, one.maps
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
    if not any(one.startswith(f"{path}.") for one in types):
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
