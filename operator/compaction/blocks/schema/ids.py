"""What identifies a schema: names, types, nullability, and the logical types that no Arrow type says; whatever a reader
makes of their storage.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pyarrow as pa

from compaction.blocks.fingerprint.cells import plain_type
from compaction.blocks.format.logical import texts_of


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
    return [field.name, bool(field.nullable), _kind(field.type)]


def _kind(kind: pa.DataType) -> Any:
    kind = plain_type(kind)
    t = pa.types
    if t.is_struct(kind):
        return ["struct", [_field(kind.field(position)) for position in range(kind.num_fields)]]
    if t.is_map(kind):
        return ["map", _kind(kind.key_type), bool(kind.item_field.nullable), _kind(kind.item_type)]
    if t.is_fixed_size_list(kind):
        return ["list", kind.list_size, bool(kind.value_field.nullable), _kind(kind.value_type)]
    if t.is_list(kind) or t.is_large_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        return ["list", bool(kind.value_field.nullable), _kind(kind.value_type)]
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "string"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return "binary"
    return str(kind)
