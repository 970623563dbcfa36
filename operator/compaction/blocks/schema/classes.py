"""The classes of schemas that may be merged with one another: a partition, computed before anything is planned.

Whether two schemas can be unified is not transitive: a file without column `b` goes with one whose `b` is a number and
with one whose `b` is a text, and these two do not go together. So the classes are those of a whole set of schemas:

* The types that a column has in the set fall into families. Types are taken in the order of their names, and each joins
  the first family whose common type can be widened by it (`merge.schema.wider_type`: the merge's own rule).
* Columns whose names differ in case only are one for most engines: the spellings that a schema has are a family.
* A schema belongs to a family of each column that has several: that of its type; the first one when it lacks the
  column. Schemas with the same families are one class.

So it is an equivalence that depends on the set alone, never on an order, and the schemas of a class can be unified
(tests/blocks/test_schema.py).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from compaction.api.text.printing import cut, printable
from compaction.blocks.format.logical import escaped, joined_text, leaf_texts, texts_of, with_texts
from compaction.blocks.merge.schema import in_unit, wider_type

MAX_TYPE_TEXT: Final = 60
"""Characters of a type in a message."""


@dataclass(frozen=True, slots=True)
class ColumnConflict:
    """A column whose types have no common one: `column` with the path of fields inside of it, `types` in words."""

    column: str
    types: tuple[str, ...]

    def __str__(self) -> str:
        return f"column {self.column} {' | '.join(self.types)}"


@dataclass(frozen=True, slots=True)
class SchemaClasses:
    """The classes of a set of schemas, by id. `labels`: what the schemas of a class have in common and no other class
    has. `conflicts`: why there are several; empty for a single one.
    """

    labels: Mapping[str, tuple[int, ...]]
    conflicts: tuple[ColumnConflict, ...] = ()

    def classes(self) -> tuple[frozenset[str], ...]:
        """The ids of each class."""
        found: dict[tuple[int, ...], set[str]] = {}
        for name, label in self.labels.items():
            found.setdefault(label, set()).add(name)
        return tuple(frozenset(found[label]) for label in sorted(found))


def classes_of(schemas: Mapping[str, pa.Schema]) -> SchemaClasses:
    """The classes of these schemas, which are named by their ids. Costs O(columns of all schemas)."""
    columns: dict[str, dict[_Key, _Kind]] = {}
    members: dict[str, dict[str, _Key]] = {}
    for name, schema in schemas.items():
        texts = texts_of(schema)
        members[name] = {}
        for field in schema:
            kind = _Kind(escaped(field.name), field.type, leaf_texts(field, texts))
            members[name][field.name] = kind.key
            columns.setdefault(field.name, {}).setdefault(kind.key, kind)
    split = {}
    for column, kinds in sorted(columns.items()):
        families = _families(kinds)
        if len(families) > 1:
            split[column] = {key: number for number, family in enumerate(families) for key in family.members}
    spellings = {name: _spellings(schema) for name, schema in schemas.items()}
    every: dict[str, set[tuple[str, ...]]] = {}
    for spelling in spellings.values():
        for folded, names in spelling.items():
            every.setdefault(folded, set()).add(names)
    spelled = {folded: sorted(sets) for folded, sets in sorted(every.items()) if len(sets) > 1}
    # `_NONE` is in no family: a schema that lacks the column gets 0, the number of the first one.
    labels = {
        name: (
            *(numbers.get(members[name].get(column, _NONE), 0) for column, numbers in split.items()),
            *(sets.index(spellings[name].get(folded, sets[0])) for folded, sets in spelled.items()),
        )
        for name in schemas
    }
    conflicts = [_conflict(column, columns[column]) for column in split]
    conflicts += [
        ColumnConflict(printable(sets[0][0]), tuple(f"spelled {printable(' and '.join(item))}" for item in sets))
        for sets in spelled.values()
    ]
    return SchemaClasses(labels, tuple(conflicts))


def _spellings(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """The columns by their names without case."""
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(schema.names):
        found[name.casefold()] = (*found.get(name.casefold(), ()), name)
    return found


def schema_text(schema: pa.Schema) -> str:
    """The schema as the index keeps it: Arrow's own form, in base64. Of its metadata what its leaves mean stays."""
    plain = with_texts(pa.schema([field.remove_metadata() for field in schema]), texts_of(schema))
    return base64.b64encode(plain.serialize().to_pybytes()).decode()


def schema_of_text(text: str) -> pa.Schema:
    """The inverse. Raises ValueError."""
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text, validate=True)))
        return with_texts(schema, texts_of(schema))
    except (binascii.Error, pa.ArrowException, OSError) as error:
        raise ValueError(f"it is not a schema: {error}") from error


_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""All of a kind that matters to a merge: its type, and the texts of its leaves by their paths."""
_NONE: Final[_Key] = ("", ())


@dataclass(frozen=True, slots=True)
class _Kind:
    """The type of a column or of a field in one, at `path`, and what its leaves mean beyond it (`format.logical`)."""

    path: str
    kind: pa.DataType
    texts: Mapping[str, str]

    @property
    def key(self) -> _Key:
        return str(self.kind), tuple(sorted((path, text) for path, text in self.texts.items() if text))

    def __str__(self) -> str:
        said = [text for _, text in sorted(self.texts.items()) if text]
        return " ".join([str(self.kind), *dict.fromkeys(said)]) if said else str(self.kind)

    def joined(self, other: _Kind) -> _Kind | None:
        """The one that holds the values of both, with their meaning; None when there is none."""
        kind = wider_type(
            in_unit(self.kind, self.path, self.texts, other.texts),
            in_unit(other.kind, self.path, other.texts, self.texts),
        )
        texts = {path: joined_text(text, other.texts.get(path, text)) for path, text in self.texts.items()}
        if kind is None or None in texts.values():
            return None
        return _Kind(self.path, kind, {**other.texts, **texts})  # type: ignore[dict-item]


@dataclass(slots=True)
class _Family:
    """Kinds of a column with a common one."""

    common: _Kind
    members: list[_Key]


def _families(kinds: Mapping[_Key, _Kind]) -> Sequence[_Family]:
    families: list[_Family] = []
    for key in sorted(kinds):
        for family in families:
            joined = family.common.joined(kinds[key])
            if joined is not None:
                family.common = joined
                family.members.append(key)
                break
        else:
            families.append(_Family(kinds[key], [key]))
    return families


def _conflict(column: str, kinds: Mapping[_Key, _Kind], path: str = "") -> ColumnConflict:
    """Return the conflict where the kinds differ: inside of structs, the first field without a common one."""
    families, path = _families(kinds), path or escaped(column)
    if all(pa.types.is_struct(kind.kind) for kind in kinds.values()):
        inside: dict[str, dict[_Key, _Kind]] = {}
        for item in kinds.values():
            for field in item.kind.fields:
                below = f"{path}.{escaped(field.name)}"
                texts = {leaf: text for leaf, text in item.texts.items() if f"{leaf}.".startswith(f"{below}.")}
                kind = _Kind(below, field.type, texts)
                inside.setdefault(field.name, {}).setdefault(kind.key, kind)
        for name, theirs in sorted(inside.items()):
            if len(_families(theirs)) > 1:
                return _conflict(f"{column}.{name}", theirs, f"{path}.{escaped(name)}")
    return ColumnConflict(
        printable(column), tuple(cut(printable(str(family.common)), MAX_TYPE_TEXT) for family in families)
    )
