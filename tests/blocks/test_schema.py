"""Which schemas are merged with one another: a partition that depends on no order, and that the merge agrees to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.errors import SchemaConflictError
from compaction.blocks.format.logical import EITHER, arrow_leaves, text_with, with_texts
from compaction.blocks.index.queued import QueueEntry
from compaction.blocks.merge.schema import unified, wider_type
from compaction.blocks.planning.batches import BlockClass
from compaction.blocks.schema.classes import classes_of, schema_of_text, schema_text
from compaction.blocks.waiting import EXAMPLES, BlockClasses

SIMPLE = (
    pa.int8(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.null(), pa.bool_(),
    pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary(), pa.date32(),
    pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"),
    pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Rome"),
    pa.decimal128(10, 2), pa.decimal128(20, 2), pa.decimal256(50, 2), pa.decimal128(10, 3), pa.time64("us"),
)  # fmt: skip


def _field(name: str, kind: pa.DataType, required: bool) -> pa.Field:
    return pa.field(name, kind, nullable=not required or pa.types.is_null(kind))


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.builds(_field, st.sampled_from("abcA"), inner, st.booleans())
    structs = st.lists(field, min_size=1, max_size=3, unique_by=lambda item: item.name).map(pa.struct)
    lists = field.flatmap(lambda item: st.sampled_from((pa.list_(item), pa.large_list(item), pa.list_(item, 2))))
    return structs | lists | inner.map(lambda kind: pa.map_(pa.string(), kind))


KINDS = st.recursive(st.sampled_from(SIMPLE), _nested, max_leaves=4)
COLUMNS = st.builds(_field, st.sampled_from("xyzX"), KINDS, st.booleans())
PLAIN = st.lists(COLUMNS, max_size=3, unique_by=lambda item: item.name).map(pa.schema)
SAID = st.sampled_from(("", "", "", "JSON", "BSON"))


@st.composite
def _schemas(draw: st.DrawFn) -> pa.Schema:
    """With what some of the leaves mean beyond their types, and how INT96 is read."""
    schema = draw(PLAIN)
    return with_texts(schema, {leaf.path: draw(_reading(leaf.kind)) or draw(SAID) for leaf in arrow_leaves(schema)})


def _reading(kind: pa.DataType) -> st.SearchStrategy[str]:
    """Of timestamps, which may be INT96 that is exact in the unit of the type, or in either."""
    if not pa.types.is_timestamp(kind) or kind.tz or kind.unit not in ("us", "ns"):
        return st.just("")
    return st.sampled_from(("", text_with("", kind.unit), text_with("", EITHER)))


SCHEMAS = _schemas()
SETS = st.lists(SCHEMAS, min_size=1, max_size=6).map(lambda found: {f"s{i}": item for i, item in enumerate(found)})


def of(*kinds: pa.DataType) -> dict[str, pa.Schema]:
    """A schema for each type of a column `ts`, named by the type."""
    return {str(kind): pa.schema([("ts", kind), ("n", pa.int64())]) for kind in kinds}


def parts(schemas: dict[str, pa.Schema]) -> set[frozenset[str]]:
    return set(classes_of(schemas).classes())


@given(SETS, st.randoms(use_true_random=False))
def test_the_classes_are_a_partition_whatever_the_order(schemas: dict[str, pa.Schema], chance: object) -> None:
    found = classes_of(schemas)
    assert sorted(name for item in found.classes() for name in item) == sorted(schemas)
    names = list(schemas)
    chance.shuffle(names)  # type: ignore[attr-defined]
    again = classes_of({name: schemas[name] for name in names})
    assert again.labels == found.labels
    assert again.conflicts == found.conflicts


@given(SETS)
def test_the_merge_unifies_every_class_in_any_order(schemas: dict[str, pa.Schema]) -> None:
    for part in parts(schemas):
        results = [unified([(name, schemas[name]) for name in order]) for order in permutations(sorted(part)[:4])]
        kinds = [{field.name: field for field in result} for result in results]
        assert all(kind.keys() == kinds[0].keys() for kind in kinds)
        for name, field in kinds[0].items():
            assert all(wider_type(kind[name].type, field.type) is not None for kind in kinds)
            assert {kind[name].nullable for kind in kinds} == {field.nullable}


@given(SETS)
def test_there_are_several_only_where_the_merge_would_refuse(schemas: dict[str, pa.Schema]) -> None:
    found = classes_of(schemas)
    if not found.conflicts:
        assert len(found.classes()) == 1
        unified(list(schemas.items()))
        return
    with pytest.raises(SchemaConflictError) as refused:
        unified(list(schemas.items()))
    assert len(found.classes()) > 1
    named = {conflict.column.partition(".")[0].casefold() for conflict in found.conflicts}
    assert refused.value.column.casefold() in named


@given(SETS)
def test_what_comes_out_of_a_class_stays_with_the_rest_of_it(schemas: dict[str, pa.Schema]) -> None:
    """Else blocks of the next level would never meet those that came later."""
    for part in parts(schemas):
        output = unified([(name, schemas[name]) for name in sorted(part)])
        assert part | {"output"} in parts({**schemas, "output": output})


def test_columns_that_differ_in_case_only_are_kept_apart() -> None:
    """Most engines take them for one column: a file with both could not be read."""
    schemas = {
        "mixed": pa.schema([("userId", pa.int64())]),
        "lower": pa.schema([("userid", pa.int64())]),
        "none": pa.schema([("n", pa.int64())]),
        "inside": pa.schema([("s", pa.struct([("A", pa.int64())]))]),
        "other inside": pa.schema([("s", pa.struct([("a", pa.int64())]))]),
    }
    found = classes_of(schemas)
    assert len(found.classes()) == 3
    assert [str(conflict) for conflict in found.conflicts] == [
        "column s struct<A: int64> | struct<a: int64>",
        "column userId spelled userId | spelled userid",
    ]
    with pytest.raises(SchemaConflictError, match=r"column userid: a has the spelling 'userId', b has 'userid'"):
        unified([("a", schemas["mixed"]), ("b", schemas["lower"])])


@given(SCHEMAS)
def test_a_schema_is_kept_as_it_is(schema: pa.Schema) -> None:
    assert schema_of_text(schema_text(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize("text", ["", "no base64!", "AAAA"])
def test_what_is_no_schema_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a schema"):
        schema_of_text(text)


@pytest.mark.parametrize(
    "kinds",
    [
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Rome")),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.float64(), pa.uint64()),
        (pa.struct([("a", pa.string())]), pa.struct([("a", pa.int64())])),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.int64(), pa.int64())),
        (pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 3), pa.list_(pa.int64())),
    ],
)
def test_types_that_no_type_holds_are_kept_apart(kinds: tuple[pa.DataType, ...]) -> None:
    assert parts(of(*kinds)) == {frozenset({str(kind)}) for kind in kinds}


@pytest.mark.parametrize(
    "kinds",
    [
        (pa.int8(), pa.int32(), pa.uint32()),
        (pa.float16(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(30, 2), pa.decimal256(60, 2)),
        (pa.null(), pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int8()), ("b", pa.string())])),
        (pa.struct([("a", pa.int64())]), pa.struct([("c", pa.bool_())])),
        (pa.list_(pa.struct([("a", pa.int64())])), pa.large_list(pa.struct([("b", pa.string())]))),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.int64())),
        (pa.uuid(), pa.binary(16)),
    ],
)  # fmt: skip
def test_types_that_a_common_one_holds_are_one_class(kinds: tuple[pa.DataType, ...]) -> None:
    assert parts(of(*kinds)) == {frozenset(map(str, kinds))}


def test_a_column_that_is_missing_parts_nobody() -> None:
    schemas = {"old": pa.schema([("n", pa.int64())]), **of(pa.timestamp("ms")), "more": pa.schema([("m", pa.bool_())])}
    assert len(parts(schemas)) == 1


def test_a_schema_without_the_column_in_question_goes_with_one_of_the_sides() -> None:
    schemas = {"old": pa.schema([("n", pa.int64())]), **of(pa.string(), pa.int64())}
    assert parts(schemas) == {frozenset({"old", "int64"}), frozenset({"string"})}


def test_a_conflict_names_the_field_and_the_types() -> None:
    (conflict,) = classes_of(of(pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"))).conflicts
    assert str(conflict) == "column ts timestamp[ms] | timestamp[ns] | timestamp[us]"
    kinds = [pa.struct([("a", pa.int8()), ("b", pa.struct([("c", kind)]))]) for kind in (pa.int8(), pa.string())]
    (conflict,) = classes_of(of(*kinds)).conflicts
    assert str(conflict) == "column ts.b.c int8 | string"


def test_int96_goes_with_what_its_unit_holds_and_never_becomes_nanoseconds_of_64_bits() -> None:
    """As the reason stands in a plan. `registered`: without a word of how it is read, as before it was known."""
    ts = {unit: pa.schema([("s", pa.struct([("ts", pa.timestamp(unit))]))]) for unit in ("us", "ns")}
    said = {
        reading: with_texts(ts["ns" if reading == "ns" else "us"], {"s.ts": text_with("", reading)})
        for reading in ("us", "ns", EITHER)
    }
    schemas = {**said, "registered": ts["us"]}
    assert parts({EITHER: said[EITHER], "ns": said["ns"]}) == {frozenset({EITHER, "ns"})}
    assert parts({EITHER: said[EITHER], "us": said["us"], "registered": ts["us"]}) == {
        frozenset({EITHER, "us", "registered"})
    }
    assert parts({EITHER: said[EITHER], "ns": said["ns"], "64 bits": ts["ns"]}) == {
        frozenset({EITHER}), frozenset({"ns", "64 bits"}),
    }  # fmt: skip
    (conflict,) = classes_of({name: item for name, item in schemas.items() if name != "registered"}).conflicts
    assert str(conflict) == (
        "column s.ts timestamp[ns] (INT96, some finer than microseconds) | "
        "timestamp[us] (INT96 beyond the years 1677 to 2262)"
    )


def test_leaves_that_mean_the_same_in_other_places_are_kept_apart() -> None:
    """Their types and the words for them are alike."""
    kind = pa.map_(pa.string(), pa.string())
    schemas = {path: with_texts(pa.schema([("m", kind)]), {path: "JSON"}) for path in ("m.{}", "m.{=}")}
    assert len(classes_of(schemas).classes()) == 2
    with pytest.raises(SchemaConflictError, match="column m"):
        unified(list(schemas.items()))


# Which of the blocks that wait are of one class, as they come.

NUMBER, TEXT = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.string())])
WAITING_SCHEMAS = {
    "number": NUMBER,
    "small": pa.schema([("n", pa.int8())]),
    "text": TEXT,
    "other": pa.schema([("m", pa.int64())]),
    "nothing": pa.schema([]),
}


class Asked:
    """What the book knows, and what it was asked for."""

    def __init__(self, known: Mapping[str, pa.Schema]) -> None:
        self.known = dict(known)
        self.questions: list[Mapping[str, Sequence[str]]] = []

    def look_up(self, examples: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Schema]:
        self.questions.append(examples)
        return {name: self.known[name] for name in examples if name in self.known}


def entry(number: int, schema: str, *, tenant: str = "t", shard: int = 0) -> QueueEntry:
    return QueueEntry(number, 0, f"b{number}", tenant, shard, 0, 0, 0, 1, 1, None, schema)


def entries(*schemas: str, start: int = 0) -> list[QueueEntry]:
    return [entry(number, schema) for number, schema in enumerate(schemas, start)]


def groups(classes: BlockClasses, *schemas: str) -> set[frozenset[str]]:
    found: dict[BlockClass, set[str]] = {}
    for name in schemas:
        found.setdefault(classes.of("t", 0, name), set()).add(name)
    return set(map(frozenset, found.values()))


def test_a_schema_that_is_alone_in_its_place_is_not_asked_for() -> None:
    """Nearly all stores have one, and a look costs nothing of it."""
    asked = Asked(WAITING_SCHEMAS)
    classes = BlockClasses(asked.look_up)
    assert classes.learn([entry(1, "number"), entry(2, "text", shard=1), entry(3, "small", tenant="u")])
    assert classes.learn(entries("number"))
    assert asked.questions == []
    assert classes.of("t", 0, "number") == BlockClass("t", 0, "number")
    assert not classes.has_several


def test_blocks_of_a_class_share_one_object() -> None:
    classes = BlockClasses(Asked(WAITING_SCHEMAS).look_up)
    classes.learn(entries("number", "small", "text"))
    assert classes.of("t", 0, "number") is classes.of("t", 0, "small")
    assert groups(classes, "number", "small", "text") == {frozenset({"number", "small"}), frozenset({"text"})}
    assert classes.has_several


def test_what_comes_later_joins_a_class_or_makes_one() -> None:
    classes = BlockClasses(Asked(WAITING_SCHEMAS).look_up)
    assert classes.learn(entries("small"))
    before = classes.of("t", 0, "small")
    assert classes.learn(entries("text", "number", start=1))
    assert classes.of("t", 0, "small") == classes.of("t", 0, "number") == before
    assert classes.of("t", 0, "text") not in {before}


def test_a_class_that_falls_apart_is_said_to() -> None:
    """`other` and `nothing` go with anything, and `text` and `number` do not go together."""
    classes = BlockClasses(Asked(WAITING_SCHEMAS).look_up)
    assert classes.learn(entries("text", "nothing", "other"))
    assert not classes.has_several
    assert not classes.learn(entries("number", start=3))
    fresh = BlockClasses(Asked(WAITING_SCHEMAS).look_up)
    assert fresh.learn(entries("text", "nothing", "other", "number"))
    names = ("text", "nothing", "other", "number")
    assert groups(fresh, *names) == {frozenset({"nothing", "number", "other"}), frozenset({"text"})}


def test_a_schema_that_nothing_tells_is_a_class_of_its_own_until_it_is_known() -> None:
    asked = Asked({"number": NUMBER})
    classes = BlockClasses(asked.look_up)
    assert classes.learn(entries("number", *["small"] * 9))
    assert groups(classes, "number", "small") == {frozenset({"number"}), frozenset({"small"})}
    assert len(asked.questions[-1]["small"]) == EXAMPLES
    assert classes.conflicts([classes.of("t", 0, name) for name in ("number", "small")]) == ()
    asked.known["small"] = WAITING_SCHEMAS["small"]
    assert not classes.learn([]), "asked again at each look, and its blocks are of another class now"
    assert groups(classes, "number", "small") == {frozenset({"number", "small"})}


def test_conflicts_name_the_columns_of_the_classes_in_question() -> None:
    classes = BlockClasses(Asked(WAITING_SCHEMAS).look_up)
    classes.learn(entries("number", "small", "text"))
    (conflict,) = classes.conflicts(classes.of("t", 0, name) for name in ("small", "text"))
    assert str(conflict) == "column n int64 | string"
    assert classes.conflicts([classes.of("t", 0, "small")]) == ()
