"""One schema for files whose schemas have evolved: columns that were added, types that were widened; else a refusal.

What may differ: a column that some files lack is null there; integers widen to a type that holds both (never into
floats, never uint64 with a signed one); float16 to float32 to float64; decimals of one scale to the larger precision; a
column of nulls only takes any type; strings, binaries and lists with 32-bit and 64-bit offsets, views, dictionaries and
extension types over the same storage are the same to us; INT96 that is exact in microseconds and in nanoseconds goes
with INT96 of both (`format.int96`). The same holds inside of structs, lists and maps, so a field
that some structs lack is null there. Everything else names the column and both types.

The rules are those of a join in a lattice: whether a set of types has a common one, and which, does not depend on the
order in which they come (tests/blocks/test_schema.py). `schema/classes.py` relies on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from compaction.blocks.errors import SchemaConflictError
from compaction.blocks.format.footer_keys import agreed
from compaction.blocks.format.logical import (
    EITHER,
    LOGICAL_KEY,
    NANOSECONDS_TOO,
    escaped,
    joined_text,
    leaf_texts,
    reading_in,
    texts_of,
    with_leaf_types,
    with_texts,
)

NamedSchema = tuple[str, pa.Schema]
"""The name of a file, and its schema."""

_FLOATS: Final = (pa.float16(), pa.float32(), pa.float64())
_SIGNED: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED: Final = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_DECIMAL128_DIGITS: Final = 38


def unified(schemas: Sequence[NamedSchema]) -> pa.Schema:
    """The schema that holds the rows of all: columns in the order in which they first appear.

    A column is nullable when it is in one of the files, or missing in one. What leaves mean beyond their Arrow types
    (`format.logical`) must be the same, and stays. Of the schema's own metadata stays what `footer_keys` says. Raises
    SchemaConflictError.
    """
    found: dict[str, tuple[str, pa.Field]] = {}
    texts: dict[str, tuple[str, str, str]] = {}
    schemas = _different(schemas)
    for file, schema in schemas:
        if len(set(schema.names)) != len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise SchemaConflictError(twice, file, "one column", file, "another of the same name")
        # Before types are compared: engines that ignore case take both spellings for one column.
        if other := spelled_otherwise(found, schema.names):
            theirs = next(name for name in found if name.casefold() == other.casefold())
            raise SchemaConflictError(other, found[theirs][0], f"the spelling {theirs!r}", file, f"{other!r}")
        means = texts_of(schema)
        for field in schema:
            name, known = found.get(field.name, (file, None))
            said = leaf_texts(field, means)
            before_it = {path: texts[path][2] for path in said if path in texts}
            found[field.name] = (name, _merged(known, name, field, file, before_it, said))
            for path, text in said.items():
                here = (file, str(field.type), text)
                before = texts.setdefault(path, here)
                joined = joined_text(before[2], text)
                if joined is None:
                    was, now = (f"{item[1]} {item[2] or 'without a logical type'}" for item in (before, here))
                    raise SchemaConflictError(field.name, before[0], was, file, now)
                texts[path] = (*before[:2], joined)
    fields = []
    names = [set(schema.names) for _, schema in schemas]
    for column, (_, field) in found.items():
        everywhere = all(column in name for name in names)
        fields.append(field if everywhere else _absent(field))
    said = with_texts(pa.schema([]), {path: text for path, (_, _, text) in texts.items()}).metadata or {}
    return pa.schema(fields, metadata={**agreed([item.metadata or {} for _, item in schemas]), **said} or None)


def declared(schemas: Sequence[NamedSchema], merged: pa.Schema) -> pa.Schema:
    """The types of the columns of `merged` that readers see: as all files that have them say, else as they are merged.

    Texts with 64-bit offsets, views and dictionaries are stored alike, so the file's Arrow schema is all that tells
    them apart. The order of a dictionary's values is not kept, so it is not declared.
    """
    fields = []
    typed = [{field.name: field.type for field in schema} for _, schema in _different(schemas)]
    for field in merged:
        kinds = {item[field.name] for item in typed if field.name in item}
        kinds.discard(pa.null())
        kind = kinds.pop() if len(kinds) == 1 else field.type
        fields.append(
            field.with_type(
                (pa.dictionary(kind.index_type, kind.value_type) if pa.types.is_dictionary(kind) else kind)
                if without_dictionary(kind).equals(field.type)
                else field.type
            )
        )
    metadata = {key: value for key, value in (merged.metadata or {}).items() if key != LOGICAL_KEY}
    return pa.schema(fields, metadata=metadata or None)


def _different(schemas: Sequence[NamedSchema]) -> list[NamedSchema]:
    """The first of those that are alike in all, metadata too: wide tables have hundreds of columns to compare."""
    found: list[NamedSchema] = []
    for schema in schemas:
        if not any(schema[1].equals(other, check_metadata=True) for _, other in found):
            found.append(schema)
    return found


def _merged(
    known: pa.Field | None,
    known_file: str,
    field: pa.Field,
    file: str,
    mine: Mapping[str, str],
    theirs: Mapping[str, str],
) -> pa.Field:
    """`mine`, `theirs`: the texts of the leaves of what is known, and of the field."""
    path = escaped(field.name)
    plain = field.with_type(without_dictionary(in_unit(field.type, path, theirs, {})))
    if known is None:
        return plain
    wider = wider_type(in_unit(known.type, path, mine, theirs), in_unit(plain.type, path, theirs, mine))
    if wider is None:
        was, now = (
            " ".join([str(kind), *_readings(said)]) for kind, said in ((known.type, mine), (field.type, theirs))
        )
        raise SchemaConflictError(field.name, known_file, was, file, now)
    return known.with_type(wider).with_nullable(known.nullable or field.nullable)


def _readings(texts: Mapping[str, str]) -> Iterable[str]:
    """Of the leaves that are INT96 the texts: without them the types of two classes may look alike."""
    return dict.fromkeys(text for _, text in sorted(texts.items()) if reading_in(text))


def in_unit(kind: pa.DataType, path: str, mine: Mapping[str, str], theirs: Mapping[str, str]) -> pa.DataType:
    """The type at a path, to be joined with another: INT96 that is exact in either unit in nanoseconds where the other
    is, else in microseconds, in whichever it was read. `mine`, `theirs`: the texts of the leaves of both.
    """
    units = {
        path: pa.timestamp("ns" if reading_in(theirs.get(path, "")) in ("ns", NANOSECONDS_TOO) else "us")
        for path, text in mine.items()
        if reading_in(text) == EITHER
    }
    return with_leaf_types(kind, path, units) if units else kind


def without_dictionary(kind: pa.DataType) -> pa.DataType:
    """The type of the values; strings and binaries in their 32-bit form."""
    if pa.types.is_dictionary(kind):
        return without_dictionary(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def wider_type(kind: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The smallest type that holds the values of both exactly; None when there is none."""
    if kind.equals(other) or pa.types.is_null(other):
        return kind
    if pa.types.is_null(kind):
        return other
    kind, other = _storage(kind), _storage(other)
    if kind.equals(other):
        return kind
    if pa.types.is_decimal(kind) and pa.types.is_decimal(other):
        return _wider_decimal(kind, other)
    return _wider_number(kind, other) or _wider_nested(kind, other)


def _storage(kind: pa.DataType) -> pa.DataType:
    """The type without what Arrow adds to the values: extensions, dictionaries, run ends, 64-bit offsets, views."""
    if isinstance(kind, pa.BaseExtensionType):
        return _storage(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _storage(kind.value_type)
    if pa.types.is_large_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.list_(kind.value_field)
    return without_dictionary(kind)


def _wider_number(item: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    for family in (_FLOATS, _SIGNED, _UNSIGNED):
        if item in family and other in family:
            return max(item, other, key=family.index)
    signed, unsigned = (item, other) if item in _SIGNED else (other, item)
    if signed in _SIGNED and unsigned in _UNSIGNED:
        needed = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
        return _SIGNED[needed] if needed < len(_SIGNED) else None
    return None


def _wider_decimal(item: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if item.scale != other.scale:
        return None
    digits = max(item.precision, other.precision)
    return (pa.decimal128 if digits <= _DECIMAL128_DIGITS else pa.decimal256)(digits, item.scale)


def _wider_nested(each: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Of structs, lists and maps: what they hold is widened, each by itself."""
    t = pa.types
    if t.is_struct(each) and t.is_struct(other):
        return _wider_struct(each, other)
    if t.is_map(each) and t.is_map(other):
        key, item = wider_type(each.key_type, other.key_type), _wider_field(each.item_field, other.item_field)
        return None if key is None or item is None else pa.map_(key, item)
    if t.is_fixed_size_list(each) and t.is_fixed_size_list(other) and each.list_size == other.list_size:
        value = _wider_field(each.value_field, other.value_field)
        return None if value is None else pa.list_(value, each.list_size)
    if t.is_list(each) and t.is_list(other):
        value = _wider_field(each.value_field, other.value_field)
        return None if value is None else pa.list_(value)
    return None


def _wider_struct(item: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The fields of both, in the order in which they first appear; one that is missing somewhere may be null."""
    mine, theirs = ({field.name: field for field in struct.fields} for struct in (item, other))
    if len(mine) != item.num_fields or len(theirs) != other.num_fields:
        return None  # two fields of one name: nothing tells which of them is which
    if spelled_otherwise(mine, theirs):
        return None
    fields = []
    for name, field in (mine | {name: field for name, field in theirs.items() if name not in mine}).items():
        both = name in mine and name in theirs
        wider = _wider_field(field, theirs[name]) if both else _absent(field)
        if wider is None:
            return None
        fields.append(wider)
    return pa.struct(fields)


def spelled_otherwise(mine: Iterable[str], theirs: Iterable[str]) -> str | None:
    """A name of `theirs` that `mine` have in other letters only: which Spark, DuckDB and Hive take for the same, so a
    file with both could not be read there, or one of them as null. Files that have both anyway agree with each other.
    """
    spellings: dict[str, set[str]] = {}
    for name in mine:
        spellings.setdefault(name.casefold(), set()).add(name)
    found: dict[str, set[str]] = {}
    for name in theirs:
        found.setdefault(name.casefold(), set()).add(name)
    return next((min(names) for folded, names in found.items() if spellings.get(folded, names) != names), None)


def _absent(field: pa.Field) -> pa.Field:
    """A field that is missing somewhere: it may be null, and what it requires are required where it is not.

    But not lists of a fixed size: pyarrow cannot read one that is required in a struct that is null.
    """
    return field.with_nullable(True).with_type(_loose(field.type))


def _loose(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct(
        [
            _absent(item) if pa.types.is_fixed_size_list(item.type) else item.with_type(_loose(item.type))
            for item in kind
        ]
    )


def _wider_field(field: pa.Field, other: pa.Field) -> pa.Field | None:
    wider = wider_type(field.type, other.type)
    return None if wider is None else field.with_type(wider).with_nullable(field.nullable or other.nullable)
