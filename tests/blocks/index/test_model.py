"""Any sequence of calls has the outcome that plain dictionaries predict, in both databases; and no row is ever lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_fields
from functools import reduce
from operator import add
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from blocks.index.model import Model
from compaction.blocks.errors import BlockStoreError
from compaction.blocks.index.claims import claim, forget_jobs, high_water, retire
from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.queued import Fault, QueueEntry, drop, quarantine, read_changes, read_queue, release
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.index.tombstones import (
    RetentionPeriods,
    condemn,
    confirm,
    confirm_gone,
    due,
    expire,
    forget_blocks,
    forget_gone,
    known_paths,
)
from compaction.blocks.model import Block, RowFingerprint
from compaction.errors import StaleTokenError
from support.blocks.block_stores import NOON, a_block, block_id, check, clear, output_of
from support.timing import examples

WRITTEN = range(8)
MADE = range(100, 106)
FAULT = Fault("Corrupt", "bad")
FAR = NOON * 2


def _written(number: int) -> Block:
    return a_block(number, tenant="ab"[number % 4 == 3])


ids = st.sampled_from([block_id(number) for number in (*WRITTEN, *MADE)])
jobs = st.sampled_from(["j1", "j2", "j3"])
paths = st.sets(
    st.sampled_from([f"{tenant}/0/{block_id(number)}.parquet" for tenant in "ab" for number in (*WRITTEN, *MADE)]),
    max_size=3,
)


class Machine(RuleBasedStateMachine):
    """Calls the index and the model side by side. `index` is set by the test."""

    index: ClassVar[IndexDatabase]

    def __init__(self) -> None:
        super().__init__()
        clear(self.index)
        self.model = Model()
        self.now = NOON
        self.planner: dict[str, QueueEntry] = {}
        self.version = 0
        self.tokens: dict[str, int] = {}

    def _both(self, call: Callable[[], Any], allowed: bool) -> None:
        refusal: BlockStoreError | StaleTokenError | None = None
        try:
            call()
        except (BlockStoreError, StaleTokenError) as error:
            refusal = error
        assert (refusal is None) is allowed, f"the model says {allowed}, the index says {refusal}"

    def _step(self) -> int:
        self.now += 1
        self.model.step += 1
        return self.now

    @rule(numbers=st.lists(st.sampled_from(WRITTEN), min_size=1, max_size=5, unique=True), spoiled=st.booleans())
    def register(self, numbers: list[int], spoiled: bool) -> None:
        blocks = [_written(number) for number in numbers]
        if spoiled:
            blocks[-1] = with_fields(blocks[-1], bytes=7)
        now = self._step()
        allowed = self.model.register(blocks)
        self._both(lambda: register(self.index, blocks, now=now), allowed)

    @rule(job=jobs, ahead=st.sampled_from([1, 1, 1, 3, 0, -1]), data=st.data())
    def claim(self, job: str, ahead: int, data: st.DataObject) -> None:
        token = self.model.high_water(job) + ahead
        queue = [name for name, _ in self.model.queue()] or [block_id(0)]
        sources = data.draw(st.sets(st.one_of(st.sampled_from(queue), ids), min_size=1, max_size=3))
        now = self._step()
        allowed = token > 0 and self.model.claim(job, token, sources)
        self._both(lambda: claim(self.index, job=job, token=token, sources=sorted(sources), now=now), allowed)

    @rule(job=jobs)
    def retire(self, job: str) -> None:
        retire(self.index, job, now=self._step())
        self.model.retire(job)

    @rule(job=jobs, behind=st.sampled_from([0, 0, 0, 0, 1, -1]), number=st.sampled_from(MADE), data=st.data())
    def replace(self, job: str, behind: int, number: int, data: st.DataObject) -> None:
        known = self.model.jobs.get(job)
        claimed = sorted(known.sources) if known else [block_id(0)]
        token = (known.token if known else 1) - behind
        skipped = data.draw(st.sets(st.sampled_from(claimed), max_size=1))
        extra = data.draw(st.sets(ids, max_size=1)) if data.draw(st.integers(0, 5)) == 0 else set()
        sources = sorted((set(claimed) - skipped) | extra)
        merged = [self.model.blocks[source].block for source in sources if source in self.model.blocks]
        outputs = (output_of(number, merged),) if merged else ()
        if outputs and data.draw(st.integers(0, 9)) == 0:
            outputs = (with_fields(outputs[0], fingerprint=outputs[0].fingerprint + RowFingerprint(0, 1)),)
        result = BlockReplacement(job, token, tuple(sources), outputs, "{}", skipped=dict.fromkeys(skipped, FAULT))
        now = self._step()
        allowed = self.model.replace(job, token, sources, skipped, outputs)
        self._both(lambda: replace(self.index, result, clock=lambda: now), allowed)
        if allowed:
            assert replace(self.index, result, clock=self._step).repeated

    @rule(block=ids)
    def quarantine(self, block: str) -> None:
        now = self._step()
        allowed = self.model.quarantine(block)
        self._both(lambda: quarantine(self.index, {block: FAULT}, now=now), allowed)

    @rule(block=ids, way=st.sampled_from(["release", "drop"]))
    def end_quarantine(self, block: str, way: str) -> None:
        now = self._step()
        allowed = getattr(self.model, way)(block)
        ways = {
            "release": lambda: release(self.index, block, now=now),
            "drop": lambda: drop(self.index, block, clock=lambda: now),
        }
        self._both(ways[way], allowed)

    @rule(tenant=st.sampled_from("abb"))
    def expire(self, tenant: str) -> None:
        self._step()
        gone = expire(self.index, RetentionPeriods(tenants={tenant: 1}), clock=lambda: FAR)
        assert {item.block for item in gone} == self.model.expire(tenant)

    @rule(limit=st.integers(1, 4))
    def sweep(self, limit: int) -> None:
        batch = [item.block for item in due(self.index, now=FAR, grace=0, limit=limit)]
        assert len(batch) == min(limit, len(self.model.deletable()))
        assert set(batch) <= self.model.deletable()
        confirm(self.index, batch, now=self._step())
        self.model.confirm(batch)

    @rule()
    def forget(self) -> None:
        before = self._step()
        forget_blocks(self.index, before=FAR)
        forget_jobs(self.index, before=FAR)
        forget_gone(self.index, before=before)
        self.model.forget()

    @rule(chosen=paths)
    def condemn(self, chosen: set[str]) -> None:
        found = condemn(self.index, sorted(chosen), now=self._step())
        assert set(found) == self.model.condemn(chosen)

    @rule(chosen=paths)
    def confirm_gone(self, chosen: set[str]) -> None:
        confirm_gone(self.index, sorted(chosen), now=self._step())
        self.model.confirm_gone(chosen)

    @invariant()
    def agrees(self) -> None:
        assert list(live_blocks(self.index).blocks) == self.model.live()
        queue = read_queue(self.index)
        assert [(entry.id, entry.job) for entry in queue.entries] == self.model.queue()
        with known_paths(self.index) as known:
            assert set(known) == self.model.used_paths()
        live = reduce(add, (block.fingerprint for block in self.model.live()), RowFingerprint())
        assert live + self.model.lost == self.model.entered, "a row was lost, or came twice"

    @invariant()
    def tokens_only_grow(self) -> None:
        for job in ("j1", "j2", "j3"):
            water = high_water(self.index, job)
            assert water == self.model.high_water(job)
            assert water >= self.tokens.get(job, 0)
            self.tokens[job] = water

    @invariant()
    def a_planner_that_follows_has_the_queue(self) -> None:
        changes = read_changes(self.index, self.version)
        if changes is None:
            reading = read_queue(self.index)
            self.planner = {entry.id: entry for entry in reading.entries}
            self.version = reading.version
        else:
            self.planner.update((entry.id, entry) for entry in changes.entries)
            for block, _ in changes.left:
                self.planner.pop(block, None)
            self.version = changes.version
        assert sorted(self.planner.values()) == list(read_queue(self.index).entries)

    def teardown(self) -> None:
        check(self.index)


def test_any_sequence_of_calls(index: IndexDatabase) -> None:
    class Here(Machine):
        pass

    Here.index = index
    run_state_machine_as_test(
        Here,
        settings=settings(max_examples=examples(8), stateful_step_count=20, suppress_health_check=list(HealthCheck)),
    )
