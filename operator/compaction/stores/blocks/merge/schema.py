"""One schema for files whose schemas have evolved: columns that were added, types that were widened; else a refusal.

What may differ: a column that some files lack is null there; integers widen to a type that holds both (never into
floats, never uint64 with a signed one); float16 to float32 to float64; a column of nulls only takes any type; strings
and binaries with 32-bit and 64-bit offsets, views, and their dictionaries are the same to us. Everything else names the
column and both types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from compaction.exceptions import SchemaConflictError
from compaction.stores.blocks.metadata import PREFIX

NamedSchema = tuple[str, pa.Schema]
"""The name of a file, and its schema."""

_OURS: Final = PREFIX.encode()
_FLOATS: Final = (pa.float16(), pa.float32(), pa.float64())
_SIGNED: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED: Final = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


def unified(schemas: Sequence[NamedSchema]) -> pa.Schema:
    """The schema that holds the rows of all: columns in the order in which they first appear.

    A column is nullable when it is in one of the files, or missing in one. The schema's own metadata is kept where all
    agree, except what a block says of itself. Raises SchemaConflictError.
    """
    found: dict[str, tuple[str, pa.Field]] = {}
    for file, schema in schemas:
        if len(set(schema.names)) != len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise SchemaConflictError(twice, file, "one column", file, "another of the same name")
        for field in schema:
            name, known = found.get(field.name, (file, None))
            found[field.name] = (name, _merged(known, name, field, file))
    fields = []
    for column, (_, field) in found.items():
        everywhere = all(column in schema.names for _, schema in schemas)
        fields.append(field if everywhere else field.with_nullable(True))
    metadata = [_of_others(schema) for _, schema in schemas]
    return pa.schema(fields, metadata=metadata[0] if metadata and all(one == metadata[0] for one in metadata) else None)


def _merged(known: pa.Field | None, known_file: str, field: pa.Field, file: str) -> pa.Field:
    plain = field.with_type(without_dictionary(field.type))
    if known is None:
        return plain
    wider = wider_type(known.type, plain.type)
    if wider is None:
        raise SchemaConflictError(field.name, known_file, str(known.type), file, str(field.type))
    return known.with_type(wider).with_nullable(known.nullable or field.nullable)


def _of_others(schema: pa.Schema) -> dict[bytes, bytes] | None:
    """The metadata that is not ours: an output is another block than any of its sources."""
    return {key: value for key, value in (schema.metadata or {}).items() if not key.startswith(_OURS)} or None


def without_dictionary(kind: pa.DataType) -> pa.DataType:
    """The type of the values; strings and binaries in their 32-bit form."""
    if pa.types.is_dictionary(kind):
        return without_dictionary(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The smallest type that holds the values of both exactly; None when there is none."""
    if one.equals(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_null(other):
        return one
    for family in (_FLOATS, _SIGNED, _UNSIGNED):
        if one in family and other in family:
            return max(one, other, key=family.index)
    signed, unsigned = (one, other) if one in _SIGNED else (other, one)
    if signed in _SIGNED and unsigned in _UNSIGNED:
        needed = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
        return _SIGNED[needed] if needed < len(_SIGNED) else None
    return None
