"""Maps that share: as dictionaries, and nothing of the map before changes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.catalogs.model.catalog import SharedMap
from support.depth import examples

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
