"""Which of the blocks that wait are of one class, as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from compaction.blocks.index.queued import QueueEntry
from compaction.blocks.planning.batches import BlockClass
from compaction.blocks.waiting import EXAMPLES, BlockClasses

NUMBER, TEXT = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.string())])
SCHEMAS = {
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
    asked = Asked(SCHEMAS)
    classes = BlockClasses(asked.look_up)
    assert classes.learn([entry(1, "number"), entry(2, "text", shard=1), entry(3, "small", tenant="u")])
    assert classes.learn(entries("number"))
    assert asked.questions == []
    assert classes.of("t", 0, "number") == BlockClass("t", 0, "number")
    assert not classes.has_several


def test_blocks_of_a_class_share_one_object() -> None:
    classes = BlockClasses(Asked(SCHEMAS).look_up)
    classes.learn(entries("number", "small", "text"))
    assert classes.of("t", 0, "number") is classes.of("t", 0, "small")
    assert groups(classes, "number", "small", "text") == {frozenset({"number", "small"}), frozenset({"text"})}
    assert classes.has_several


def test_what_comes_later_joins_a_class_or_makes_one() -> None:
    classes = BlockClasses(Asked(SCHEMAS).look_up)
    assert classes.learn(entries("small"))
    before = classes.of("t", 0, "small")
    assert classes.learn(entries("text", "number", start=1))
    assert classes.of("t", 0, "small") == classes.of("t", 0, "number") == before
    assert classes.of("t", 0, "text") not in {before}


def test_a_class_that_falls_apart_is_said_to() -> None:
    """`other` and `nothing` go with anything, and `text` and `number` do not go together."""
    classes = BlockClasses(Asked(SCHEMAS).look_up)
    assert classes.learn(entries("text", "nothing", "other"))
    assert not classes.has_several
    assert not classes.learn(entries("number", start=3))
    fresh = BlockClasses(Asked(SCHEMAS).look_up)
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
    asked.known["small"] = SCHEMAS["small"]
    assert not classes.learn([]), "asked again at each look, and its blocks are of another class now"
    assert groups(classes, "number", "small") == {frozenset({"number", "small"})}


def test_conflicts_name_the_columns_of_the_classes_in_question() -> None:
    classes = BlockClasses(Asked(SCHEMAS).look_up)
    classes.learn(entries("number", "small", "text"))
    (conflict,) = classes.conflicts(classes.of("t", 0, name) for name in ("small", "text"))
    assert str(conflict) == "column n int64 | string"
    assert classes.conflicts([classes.of("t", 0, "small")]) == ()
