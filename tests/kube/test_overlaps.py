"""Which policies share a store is kept up to date by each change, and only those concerned are asked again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compaction.api.policy.policy import CompactionPolicy
from compaction.core.reconcile.store_work import Claimant, share_a_store
from compaction.kube.gather import Overlaps
from compaction.kube.informer.cache import CacheKey
from support.cluster.manifests import policy_object

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND, THIRD = (CacheKey("storage", name) for name in ("first", "second", "third"))


def policy(key: CacheKey, root: str, *, age: int = 0, generation: int = 1) -> CompactionPolicy:
    return policy_of(key, {"segmentLogs": {"root": root}}, age=age, generation=generation)


def policy_of(key: CacheKey, store: dict[str, Any], *, age: int, generation: int) -> CompactionPolicy:
    document = policy_object(key.name, store=store)
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


PARTS = st.lists(st.sampled_from(("a", "b", "ab", ".", "")), max_size=4)
LOGS = PARTS.map(lambda parts: {"segmentLogs": {"root": "/".join(("/data", *parts))}})
URLS = st.tuples(st.sampled_from(("s3://one", "s3://two", "file:///one")), st.lists(st.sampled_from("ab"), max_size=3))
BLOCKS = st.tuples(URLS, st.sampled_from(("first", "second", "third"))).map(
    lambda pair: {"blockStore": {"url": "/".join((pair[0][0], *pair[0][1])), "index": {"secretName": pair[1]}}}
)
KEYS = st.builds(CacheKey, st.sampled_from(("storage", "tenants")), st.sampled_from(("x", "y", "z", "w")))


@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), LOGS, BLOCKS)), max_size=25))
def test_whoever_shares_a_store_is_found_without_a_look_at_the_others(
    notes: list[tuple[CacheKey, dict[str, Any] | None]],
) -> None:
    overlaps = Overlaps()
    known: dict[CacheKey, CompactionPolicy] = {}

    def sharing(key: CacheKey) -> set[CacheKey]:
        if key not in known:
            return set()
        mine = Claimant.of(known[key])
        return {other for other, item in known.items() if other != key and share_a_store(mine, Claimant.of(item))}

    for generation, (key, store) in enumerate(notes):
        before = sharing(key)
        known.pop(key, None)
        if store is not None:
            known[key] = policy_of(key, store, age=generation, generation=generation)
        assert overlaps.note(key, known.get(key)) == before | sharing(key)
    for key, item in known.items():
        older = [other for other in sharing(key) if Claimant.of(known[other]).age < Claimant.of(item).age]
        assert bool(overlaps.held_by(key)) is bool(older)
