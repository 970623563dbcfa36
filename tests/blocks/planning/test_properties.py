"""The queue against its invariants, whatever comes, goes, and in whatever order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blocks.planning.queues import expected, found
from compaction.blocks.planning.batches import BlockClass, BlockReason, BlockRules, LevelRule, QueuedBlock
from compaction.blocks.planning.offers import offer
from compaction.blocks.planning.queue import BlockQueue
from compaction.core.planning.candidates import Candidate
from support.timing import examples

RULES = st.builds(
    BlockRules,
    levels=st.lists(
        st.builds(
            LevelRule,
            max_blocks=st.integers(2, 4),
            max_age=st.sampled_from([0.5, 2.0, 7.0]),
            max_bytes=st.sampled_from([0, 0, 12]),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    span=st.sampled_from([0, 10]),
    strict_gain=st.booleans(),
    max_bytes_per_job=st.sampled_from([0, 0, 9]),
)
ARRIVALS = st.tuples(
    st.builds(BlockClass, st.sampled_from("AAAB"), st.integers(0, 1), st.sampled_from(["ms", "ms", "us"])),
    st.integers(0, 3),  # level
    st.integers(0, 13),  # bytes
    st.integers(-15, 15),  # beginning of the data
    st.sampled_from([0.0, 0.0, 0.0, 0.5, 3.0]),  # how late it is learnt
)
IDS = st.lists(st.integers(0, 40), max_size=5, unique=True)


class QueueMachine(RuleBasedStateMachine):
    """`waiting` and `held` are what should be where, by id; `alone` is left alone for good."""

    @initialize(rules=RULES)
    def begin(self, rules: BlockRules) -> None:
        self.block_rules = rules
        self.queue = BlockQueue(rules)
        self.now = 0.0
        self.numbers = 0
        self.waiting: dict[str, QueuedBlock] = {}
        self.held: dict[str, dict[str, QueuedBlock]] = {}
        self.alone: dict[str, QueuedBlock] = {}

    @rule(arrival=ARRIVALS)
    def push(self, arrival: tuple[BlockClass, int, int, int, float]) -> None:
        kin, level, size, min_time, late = arrival
        one = QueuedBlock(str(self.numbers), kin, level, size, min_time, max(0.0, self.now - late), self.numbers)
        self.numbers += 1
        assert self.queue.push(one)
        assert not self.queue.push(one), "known"
        level_of = self.block_rules.level_of(one.level, one.bytes)
        (self.alone if isinstance(level_of, BlockReason) else self.waiting)[one.id] = one

    @rule(seconds=st.sampled_from([0.0, 0.25, 0.5, 1.0, 5.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(numbers=IDS)
    def remove(self, numbers: list[int]) -> None:
        names = [str(number) for number in numbers]
        known = 0
        for place in (self.waiting, self.alone, *self.held.values()):
            for name in names:
                known += place.pop(name, None) is not None
        self.held = {lane: blocks for lane, blocks in self.held.items() if blocks}
        assert self.queue.remove(names) == known
        assert self.queue.remove(names) == 0

    @rule(most=st.integers(0, 3))
    def make_jobs(self, most: int) -> None:
        for item in self.offered(most):
            if item.target not in self.held:
                self.hold(item)

    def hold(self, one: Candidate) -> None:
        sources = one.groups[0].sources
        self.held[one.target] = {name: self.waiting.pop(name) for name in sources}
        assert self.queue.hold(one.target, one.level, sources) == len(sources)
        assert self.queue.hold(one.target, one.level, sources) == 0

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100), succeeded=st.booleans())
    def end_job(self, pick: int, succeeded: bool) -> None:
        lane = sorted(self.held)[pick % len(self.held)]
        blocks = self.held.pop(lane)
        if succeeded:
            assert self.queue.remove(list(blocks)) == len(blocks)
        else:
            assert self.queue.release(lane) == len(blocks)
            self.waiting |= blocks

    def offered(self, most: int | None = None) -> tuple[Candidate, ...]:
        return offer(self.queue, now=self.now, sensed_at=0.0, most=most).candidates

    @invariant()
    def batches_are_a_function_of_what_waits(self) -> None:
        self.queue.advance(self.now)
        assert found(self.queue) == expected(self.block_rules, self.waiting.values(), self.now)
        fresh = BlockQueue(self.block_rules)
        fresh.push_all(self.waiting.values())
        assert [b.blocks for b in fresh.ready(self.now)] == [b.blocks for b in self.queue.ready(self.now)], "a restart"

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        names = [name for batch in self.queue.batches() for name in (block.id for block in batch.blocks)]
        names += [block.id for held in self.queue.held.values() for block in held.blocks]
        expected_names = [*self.waiting, *(name for blocks in self.held.values() for name in blocks)]
        assert sorted(names) == sorted(expected_names)
        assert len(self.queue) == len(names)
        assert all(name in self.queue for name in (*names, *self.alone))
        left = sum(row.count for row in self.queue.left_alone())
        ready = sum(len(batch.blocks) for batch in self.queue.ready(self.now))
        assert left + ready == len(self.waiting) + len(self.alone), "a reason for whatever is not offered"

    @invariant()
    def offers_are_sound(self) -> None:
        self.queue.advance(self.now)
        seen: set[str] = set()
        for item in self.offered():
            (group,) = item.groups
            assert seen.isdisjoint(group.sources), "planned twice"
            seen.update(group.sources)
            assert list(group.sources) == sorted(group.sources)
            if item.target in self.held:
                assert set(group.sources) == set(self.held[item.target])
                continue
            blocks = [self.waiting[name] for name in group.sources]
            assert len({(b.kin, self.block_rules.window_of(b.min_time)) for b in blocks}) == 1
            assert max(b.level for b in blocks) <= item.level < len(self.block_rules.levels)
            assert len(blocks) <= self.block_rules.levels[item.level].max_blocks
            limit = self.block_rules.max_bytes_per_job
            assert not limit or group.copy_bytes <= limit
            assert len(blocks) > 1 or not self.block_rules.strict_gain

    @invariant()
    def nothing_that_is_due_waits(self) -> None:
        self.queue.advance(self.now)
        due = self.queue.next_due()
        assert due is None or due > self.now


QueueMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestQueueMachine = QueueMachine.TestCase


@given(arrivals=st.lists(ARRIVALS, max_size=40), looks=st.lists(st.integers(0, 39)), rules=RULES)
def test_who_looks_and_when_changes_nothing(
    arrivals: list[tuple[BlockClass, int, int, int, float]], looks: list[int], rules: BlockRules
) -> None:
    """A queue that is looked at between any two arrivals has the same batches as one that is looked at once."""
    watched, other = BlockQueue(rules), BlockQueue(rules)
    for number, (kin, level, size, min_time, gap) in enumerate(arrivals):
        one = QueuedBlock(str(number), kin, level, size, min_time, number * 0.5, number)
        watched.push(one)
        other.push(one)
        if number in looks:
            watched.ready(one.arrived + gap)
    assert [b.blocks for b in watched.ready(99.0)] == [b.blocks for b in other.ready(99.0)]


@given(rules=RULES, gap=st.sampled_from([0.1, 1.0, 3.0]), count=st.integers(1, 30))
def test_without_traffic_everything_that_can_be_merged_is_offered_in_the_end(
    rules: BlockRules, gap: float, count: int
) -> None:
    """The reference needs a push to flush a batch (docs/design/blocks.md#levels): an idle key waits for ever."""
    rules = replace(rules, max_bytes_per_job=0)
    queue = BlockQueue(rules)
    queue.push_all(QueuedBlock(str(n), BlockClass("A", n % 3), 0, 1, 0, n * gap, n) for n in range(count))
    queue.advance(count * gap)
    looks = 0
    while (due := queue.next_due()) is not None:
        queue.advance(due)
        looks += 1
        assert looks < 1000
    waiting = [row for row in queue.left_alone() if row.reason is BlockReason.WAITING_FOR_MORE]
    assert waiting == []
    alone = [batch for batch in queue.batches() if batch.ready is None]
    assert all(len(batch.blocks) == 1 and batch.level == len(rules.levels) - 1 for batch in alone)


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("push"), ARRIVALS),
        st.tuples(st.just("remove"), IDS),
        st.tuples(st.just("hold"), IDS),
        st.tuples(st.just("release"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=examples(300))
@given(changes=CHANGES, rules=RULES)
def test_many_changes_between_two_looks(changes: list[tuple[str, Any]], rules: BlockRules) -> None:
    """What is late, taken out in parts and put back before anybody looks is cut once, and cut right."""
    queue = BlockQueue(rules)
    waiting: dict[str, QueuedBlock] = {}
    held: dict[str, QueuedBlock] = {}
    number = 0
    for what, data in changes:
        if what == "push":
            kin, level, size, min_time, late = data
            one = QueuedBlock(str(number), kin, level, size, min_time, max(0.0, number * 0.3 - late), number)
            number += 1
            queue.push(one)
            if not isinstance(rules.level_of(level, size), BlockReason):
                waiting[one.id] = one
        elif what == "release":
            assert queue.release("lane") == len(held)
            waiting |= held
            held = {}
        else:
            names = {str(n) for n in data}
            gone = {name: waiting.pop(name) for name in names if name in waiting}
            if what == "hold":
                assert queue.hold("lane", 0, names) == len(gone)
                held |= gone
            else:
                held = {name: item for name, item in held.items() if name not in names}
                queue.remove(names)
    queue.advance(number * 0.3)
    assert found(queue) == expected(rules, waiting.values(), number * 0.3)
    assert len(queue) == len(waiting) + len(held)
    queue.remove([*waiting, *held])
    assert (queue.ready(1e9), len(queue), queue._groups) == ((), 0, {})
