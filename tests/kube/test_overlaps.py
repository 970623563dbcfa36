"""Which policies share a store is kept up to date by each change, and only those concerned are asked again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from compaction.api.policy import CompactionPolicy
from compaction.kube.cache import ObjectKey
from compaction.kube.overlaps import Overlaps
from support.cluster.manifests import policy_object

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND, THIRD = (ObjectKey("storage", name) for name in ("first", "second", "third"))


def policy(key: ObjectKey, root: str, *, age: int = 0, generation: int = 1) -> CompactionPolicy:
    document = policy_object(key.name, store={"segmentLogs": {"root": root}})
    document["metadata"] |= {
        "namespace": key.namespace,
        "uid": f"uid-{key.name}",
        "generation": generation,
        "creationTimestamp": (START + timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return CompactionPolicy.from_object(document)


def test_a_younger_one_is_held_until_the_older_one_is_gone_or_elsewhere() -> None:
    overlaps = Overlaps()
    assert overlaps.note(SECOND, policy(SECOND, "/data", age=5)) == frozenset()
    assert overlaps.held_by(SECOND) == ""
    assert overlaps.note(FIRST, policy(FIRST, "/data/ra")) == {SECOND}, "the older one was heard of later"
    assert "storage/first" in overlaps.held_by(SECOND)
    assert overlaps.held_by(FIRST) == ""
    assert overlaps.note(THIRD, policy(THIRD, "/elsewhere", age=9)) == frozenset()
    assert overlaps.note(FIRST, policy(FIRST, "/elsewhere", generation=2)) == {SECOND, THIRD}
    assert overlaps.held_by(SECOND) == ""
    assert "storage/first" in overlaps.held_by(THIRD)
    assert overlaps.note(FIRST, None) == {THIRD}
    assert overlaps.held_by(THIRD) == ""
    assert overlaps.note(FIRST, None) == frozenset()


def test_a_spec_that_stays_asks_nobody() -> None:
    overlaps = Overlaps()
    overlaps.note(FIRST, policy(FIRST, "/data"))
    overlaps.note(SECOND, policy(SECOND, "/data", age=5))
    assert overlaps.note(FIRST, policy(FIRST, "/data")) == frozenset()
    assert "storage/first" in overlaps.held_by(SECOND)
