"""Any sequence of calls, compared with a dict; on both databases."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from compaction.staging.errors import PredicateFailedError
from compaction.staging.kv.port import Expected, Presence
from compaction.staging.kv.sql import SqlKeyValueStore
from support.depth import examples

PARTITIONS = st.sampled_from(["p", "p\x00", "\udcff", "repo-main:1"])
KEYS = st.one_of(
    st.sampled_from([b"\x00", b"a", b"a\x00", b"a\xff", b"b", b"\xff", b"\xff\xff"]), st.binary(min_size=1, max_size=3)
)
VALUES = st.binary(max_size=3)
ROWS = st.lists(st.tuples(KEYS, VALUES), max_size=8)


class Machine(RuleBasedStateMachine):
    """Calls of one store beside the same of a dict."""

    def __init__(self, store: SqlKeyValueStore) -> None:
        super().__init__()
        self.store = store
        self.model: dict[str, dict[bytes, bytes]] = {name: {} for name in ("p", "p\x00", "\udcff", "repo-main:1")}
        for name in self.model:
            store.delete_many(name, [key for page in store.scan(name) for key, _ in page])

    @rule(partition=PARTITIONS, key=KEYS, value=VALUES)
    def set(self, partition: str, key: bytes, value: bytes) -> None:
        self.store.set(partition, key, value)
        self.model[partition][key] = value

    @rule(
        partition=PARTITIONS, key=KEYS, value=VALUES, expected=st.one_of(st.sampled_from(Presence), VALUES, st.none())
    )
    def set_if(self, partition: str, key: bytes, value: bytes, expected: Expected | None) -> None:
        rows = self.model[partition]
        if expected is None:
            expected = rows.get(key, b"")
        holds = rows.get(key) == expected
        if isinstance(expected, Presence):
            holds = (key in rows) == (expected is Presence.PRESENT)
        try:
            self.store.set_if(partition, key, value, expected)
        except PredicateFailedError:
            assert not holds
            return
        assert holds
        rows[key] = value

    @rule(partition=PARTITIONS, keys=st.lists(KEYS, max_size=8))
    def get_many(self, partition: str, keys: list[bytes]) -> None:
        rows = self.model[partition]
        assert self.store.get_many(partition, keys) == {key: rows[key] for key in keys if key in rows}

    @rule(partition=PARTITIONS, key=KEYS)
    def delete(self, partition: str, key: bytes) -> None:
        self.store.delete(partition, key)
        self.model[partition].pop(key, None)

    @rule(partition=PARTITIONS, rows=ROWS)
    def set_many(self, partition: str, rows: list[tuple[bytes, bytes]]) -> None:
        self.store.set_many(partition, rows)
        self.model[partition] |= dict(rows)

    @rule(partition=PARTITIONS, keys=st.lists(KEYS, max_size=8))
    def delete_many(self, partition: str, keys: list[bytes]) -> None:
        self.store.delete_many(partition, keys)
        for key in keys:
            self.model[partition].pop(key, None)

    @rule(partition=PARTITIONS, key=KEYS)
    def get(self, partition: str, key: bytes) -> None:
        assert self.store.get(partition, key) == self.model[partition].get(key)

    @rule(partition=PARTITIONS, start=st.one_of(st.just(b""), KEYS), stop=st.none() | KEYS, page=st.integers(1, 4))
    def scan(self, partition: str, start: bytes, stop: bytes | None, page: int) -> None:
        seen = [row for rows in self.store.scan(partition, start, stop, page=page) for row in rows]
        inside = {k: v for k, v in self.model[partition].items() if start <= k and (stop is None or k < stop)}
        assert seen == sorted(inside.items())

    @invariant()
    def content(self) -> None:
        for partition, rows in self.model.items():
            assert [row for page in self.store.scan(partition) for row in page] == sorted(rows.items())


@pytest.mark.parametrize("steps", [30])
def test_any_sequence_of_calls(kv: SqlKeyValueStore, steps: int) -> None:
    machine: Any = functools.partial(Machine, kv)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60), stateful_step_count=steps, suppress_health_check=list(HealthCheck), deadline=None
        ),
    )
