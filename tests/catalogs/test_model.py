"""Hybrid timestamps: 48 bits of milliseconds, 16 bits of a counter."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.model import descriptors
from compaction.catalogs.model.applying import applied, restored
from compaction.catalogs.model.catalog import EMPTY, Catalog, SharedMap
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.catalogs.replay.recorded import in_order
from compaction.catalogs.replay.replaying import replay
from support.catalogs.rounds import puts, records
from support.timing import examples


@given(st.integers(0, descriptors.MAX_PHYSICAL), st.integers(0, descriptors.MAX_LOGICAL))
def test_parts_return(milliseconds: int, counter: int) -> None:
    if not milliseconds and not counter:
        return
    timestamp = descriptors.hybrid(milliseconds, counter)
    assert (descriptors.physical(timestamp), descriptors.logical(timestamp)) == (milliseconds, counter)
    assert descriptors.MINIMUM <= timestamp <= descriptors.MAXIMUM
    assert descriptors.next_millisecond(timestamp) == milliseconds + (counter > 0)


def test_order_is_the_order_of_the_parts() -> None:
    stamps = [descriptors.hybrid(1), descriptors.hybrid(1, 1), descriptors.hybrid(1, 65535), descriptors.hybrid(2)]
    assert stamps == sorted(stamps)
    assert descriptors.later(stamps[1], 3) == descriptors.hybrid(4, 1)


@pytest.mark.parametrize(("milliseconds", "counter"), [(0, 0), (-1, 0), (1, 65536), (1, -1), (2**47, 0)])
def test_what_is_no_timestamp(milliseconds: int, counter: int) -> None:
    with pytest.raises(ValueError, match="no hybrid timestamp"):
        descriptors.hybrid(milliseconds, counter)


def test_moves_beyond_the_range() -> None:
    for timestamp, by in ((descriptors.MAXIMUM, 1), (descriptors.MINIMUM, -1)):
        with pytest.raises(ValueError, match="no hybrid timestamp"):
            descriptors.later(timestamp, by)


# Maps that share: as dictionaries, and nothing of the map before changes.

steps = st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=80)


@settings(max_examples=examples(200))
@given(st.dictionaries(st.integers(0, 60), st.text(max_size=2), max_size=40), steps)
def test_a_map_does_what_a_dictionary_does(start: dict[int, str], changes: list[tuple[bool, int]]) -> None:
    model = dict(start)
    shared = SharedMap(start.items())
    for put, key in changes:
        before, kept = shared, dict(model)
        if put:
            model[key] = str(key)
            shared = shared.put(key, str(key))
        else:
            model.pop(key, None)
            shared = shared.without(key)
        assert dict(before.items()) == kept
        assert dict(shared.items()) == model
        assert len(shared) == len(model)
        assert shared.get(key) == model.get(key)
        assert (key in shared) == (key in model)
    assert sorted(shared) == sorted(model)
    assert sorted(shared.values()) == sorted(model.values())
    assert shared == SharedMap(model.items())
    assert shared != SharedMap({**model, 99: ""}.items())


def test_a_missing_key_is_an_error() -> None:
    with pytest.raises(KeyError):
        SharedMap([(1, "a")])[2]
    assert SharedMap([(1, "a")])[1] == "a"
    assert repr(SharedMap([(1, "a")])) == "SharedMap({1: 'a'})"


def test_removing_what_is_not_there_changes_nothing() -> None:
    shared = SharedMap([(1, "a")])
    assert shared.without(2) is shared


def test_a_change_of_a_large_map_costs_little() -> None:
    """A copy would take more than 600 kB."""
    shared = SharedMap((number, number) for number in range(20_000))
    tracemalloc.start()
    kept = [shared]
    for number in range(100):
        kept.append(kept[-1].put(number, -number))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 100 < 3000


# Random DDL that the reference ran: the same answers, entries, versions and fingerprints come from our commands.

SEEDS = [11, 14]


def path_of(shared_fixtures: Path, seed: int) -> Path:
    return shared_fixtures / "ignite-replay" / f"head_seed{seed}.jsonl.gz"


@pytest.mark.fixtures
@pytest.mark.parametrize("seed", SEEDS)
def test_the_manager_does_what_the_reference_does(shared_fixtures: Path, seed: int) -> None:
    """Every step: answers, classes of errors, writes, events, versions, fingerprints."""
    seen: Counter[str] = Counter()
    for step in replay(path_of(shared_fixtures, seed)):
        assert step.differences == (), f"line {step.line}"
        seen[step.name] += 1
    assert seen["exec"] + seen["interleave"] > 200
    assert min(seen[name] for name in ("compact", "restart", "activeAt", "versions", "keys", "config")) >= 1


@pytest.mark.fixtures
@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_leads_to_the_same_versions(shared_fixtures: Path, seed: int) -> None:
    """Each value decoded and applied; snapshots are the versions they stand for, and ours are theirs in order."""
    versions: dict[int, Catalog] = {0: EMPTY}
    snapshots = 0
    for record in records(path_of(shared_fixtures, seed)):
        for version, data, timestamp in puts(record):
            event = decode(data, f"catalog.update.{version}")
            if isinstance(event, VersionedUpdate):
                versions[version] = applied(versions[version - 1], event, timestamp)
                continue
            assert restored(event) == versions[version]
            assert versions[version].snapshot() == in_order(event)
            assert decode(encode(versions[version].snapshot()), "snapshot") == in_order(event)
            snapshots += 1
        if "catalogSha256" in record:
            assert canonical.fingerprint(versions[record["latest"]]) == record["catalogSha256"]
    assert snapshots >= 3
