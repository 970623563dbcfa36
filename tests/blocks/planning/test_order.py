"""Tenants take turns; names and ids are the same for the same sources."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocks.planning.queues import block, ids, queue_of, ready, rules_of
from compaction.api.policy.policy import CompactionPolicyStatus
from compaction.blocks.errors import BlockIdError
from compaction.blocks.kind import BLOCKS, READS_AFTER, measures_of, read_amplification
from compaction.blocks.planning.batches import SchemaConflict
from compaction.blocks.planning.offers import output_id, ulid_milliseconds
from compaction.blocks.planning.queue import BlockQueue, ReadyLines
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.core.planning.debt import Conflict, ScanResult, TenantDebt, UnofferedDebt, debt_of, total_debt
from compaction.core.planning.planner import JobInventory, PlanLimits, Planner, PlanTrigger
from compaction.core.reconcile.status.summary import store_figures


def tenants(queue: BlockQueue, **more: object) -> str:
    """Whose the ready batches are, in order."""
    return "".join(batch.group.key[0].tenant for batch in queue.ready(1e6, **more))  # type: ignore[arg-type]


def noisy(*counts: tuple[str, int]) -> BlockQueue:
    """So many full batches of each tenant, the first tenant's first."""
    names = [tenant for tenant, count in counts for _ in range(2 * count)]
    return queue_of(*(block(n, f"{tenant}0") for n, tenant in enumerate(names)), rules=rules_of(2))


class TestTurns:
    def test_a_noisy_tenant_waits_for_itself(self) -> None:
        """A thousand batches of A came first: B and C have their jobs at once (docs/design/blocks.md#levels)."""
        assert tenants(noisy(("A", 1000), ("B", 1), ("C", 2)), most=7) == "ABCACAA"

    def test_jobs_that_exist_count(self) -> None:
        """With room for one job at a time, turns alone would give all of it to the oldest."""
        queue = noisy(("A", 3), ("B", 2))
        assert tenants(queue, most=1, existing={(0, "A"): 900}) == "B"
        assert tenants(queue, existing={(0, "A"): 1}) == "BABAA"
        assert tenants(queue, existing={(1, "A"): 900}) == "ABABA", "another level's"

    def test_a_turn_is_not_paid_for_at_another_level(self) -> None:
        queue = queue_of(
            *(block(n, "A0") for n in range(4)), *(block(n, "A0", 1) for n in (4, 5)),
            *(block(n, "B0", 1) for n in (6, 7)), rules=rules_of(2, 2),
        )  # fmt: skip
        assert ready(queue) == ["A0-L0{0,1}", "A0-L0{2,3}", "A0-L1{4,5}", "B0-L1{6,7}"]

    @given(owners=st.lists(st.sampled_from("AAAABC"), max_size=60), most=st.integers(0, 30), data=st.data())
    def test_turns_are_fair_and_complete(self, owners: list[str], most: int, data: st.DataObject) -> None:
        queue = queue_of(*(block(n, f"{owner}{n % 2}") for n, owner in enumerate(owners)), rules=rules_of(2))
        existing = {(0, tenant): data.draw(st.integers(0, 3)) for tenant in "ABC"}
        every = queue.ready(1e6, existing=existing)
        assert queue.ready(1e6, most=most, existing=existing) == every[:most]
        assert len(every) == queue.ready_size == len({id(item) for item in every})
        left = {t: sum(b.group.key[0].tenant == t for b in every) for t in "ABC"}
        had = {t: existing[0, t] for t in "ABC"}
        for batch in every:
            tenant = batch.group.key[0].tenant
            assert all(had[tenant] <= had[t] for t in "ABC" if left[t]), "who has fewest is next"
            had[tenant] += 1
            left[tenant] -= 1
        for tenant in "ABC":
            line = [batch.ready for batch in every if batch.group.key[0].tenant == tenant]
            assert line == sorted(line), "first come, first served"  # type: ignore[type-var]

    def test_lines_forget_what_is_gone(self) -> None:
        queue = noisy(("A", 50), ("B", 1))
        for n in range(0, 80, 2):
            queue.remove([str(n), str(n + 1)])
            assert len(queue.ready(1e6, most=1)) == 1
        assert (queue.ready_size, tenants(queue, most=3)) == (11, "ABA")
        lines: ReadyLines = queue._lines
        assert sum(len(line.batches) for line in lines._levels[0].values()) == 11


ULIDS = st.integers(0, 2**128 - 1).map(
    lambda value: "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[value >> s & 31] for s in range(125, -1, -5))
)


class TestOutputIds:
    @given(sources=st.lists(ULIDS, min_size=1, max_size=20, unique=True), seed=st.integers(0, 9))
    def test_the_same_sources_make_the_same_id_in_whatever_order(self, sources: list[str], seed: int) -> None:
        shuffled = list(sources)
        random.Random(seed).shuffle(shuffled)
        made = output_id(sources, tenant="t", shard=1, level=1)
        assert made == output_id(shuffled, tenant="t", shard=1, level=1)
        assert ulid_milliseconds(made) == min(map(ulid_milliseconds, sources)), "as old as the oldest"
        assert made not in sources

    def test_everything_that_makes_another_output_makes_another_id(self) -> None:
        one, two = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"
        made = {
            output_id([one, two], tenant="t", shard=1, level=1),
            output_id([one], tenant="t", shard=1, level=1),
            output_id([one, two], tenant="t1", shard=1, level=1),
            output_id([one, two], tenant="t", shard=11, level=1),
            output_id([one, two], tenant="t", shard=1, level=2),
            output_id([one, two], tenant="t", shard=1, level=1, part=1),
            output_id([one, two], tenant="t", shard=1, level=1, attempt="job.1"),
        }
        assert len(made) == 7

    def test_time(self) -> None:
        assert ulid_milliseconds("01ARZ3NDEKTSV4RRFFQ69G5FAV") == 1469922850259

    @pytest.mark.parametrize("wrong", ["", "01ARZ3NDEKTSV4RRFFQ69G5FA", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "i" * 26])
    def test_what_is_no_ulid_is_named(self, wrong: str) -> None:
        with pytest.raises(BlockIdError, match="26 characters"):
            ulid_milliseconds(wrong)

    @pytest.mark.parametrize("sources", [[], ["01ARZ3NDEKTSV4RRFFQ69G5FAV"] * 2])
    def test_an_output_of_nothing_or_of_one_block_twice(self, sources: list[str]) -> None:
        with pytest.raises(BlockIdError, match="each once"):
            output_id(sources, tenant="t", shard=1, level=1)


def test_a_late_block_takes_its_place() -> None:
    """Its writer was slow to be heard of, but it came before the others."""
    queue = queue_of(*(block(n) for n in (1, 3, 4)))
    assert [ids(batch) for batch in queue.ready(10)] == [("1", "3", "4")]
    queue.push(block(2))
    assert [ids(batch) for batch in queue.ready(10)] == [("1", "2", "3")]


# Debt of block stores, and what is left of a batch that was put apart.

NOW = 1000.0


def batch(*sources: str, tenant: str = "t", level: int = 0, at: float | None = None) -> Candidate:
    group = GroupCandidate(sources, sources, 10 * len(sources), 0, divisible=True)
    return Candidate(
        f"{tenant}/0/L{level}/{sources[0]}",
        tenant,
        "",
        (group,),
        (),
        10 * len(sources),
        len(sources),
        sensed_at=0.0,
        level=level,
        oldest_debt_at=at,
    )


def test_by_level_and_tenant_with_what_was_not_offered() -> None:
    candidates = [batch("1", "2", "3", at=7.0), batch("4", "5", tenant="u", at=5.0), batch("6", "7", level=1)]
    beyond = [UnofferedDebt(0, "u", sources=40, bytes=400, targets=2)]
    debt = total_debt(candidates, beyond)
    assert (debt.sources, debt.bytes, debt.copy_bytes, debt.targets) == (47, 470, 470, 5)
    assert [(level.level, level.sources, level.bytes) for level in debt.levels] == [(0, 45, 450), (1, 2, 20)]
    assert debt.tenants == (TenantDebt("u", 420, 42), TenantDebt("t", 50, 5))
    left = measures_of(live=47, windows=1, candidates=candidates, beyond=beyond)[READS_AFTER]
    assert left == 5, "five blocks stay"
    assert debt.oldest_at == 5.0


def test_of_a_reading() -> None:
    reading = ScanResult(1, 1, 0.0, 0.0, 0.0, candidates=(batch("1", "2"),))
    assert debt_of(reading).sources == 2
    assert measures_of(live=9, windows=1, candidates=reading.candidates)[READS_AFTER] == 8
    assert (total_debt(()).sources, total_debt(()).oldest_at) == (0, None)


def test_read_amplification() -> None:
    assert read_amplification(0, 0) == 0.0
    assert read_amplification(10, 3) == 3.33
    assert read_amplification(10 - 6, 4) == 1.0
    assert read_amplification(10 - 9, 4) == 1.0, "a window with data has a block"


def test_what_schemas_keep_apart_is_in_the_status() -> None:
    found = [SchemaConflict(f"t{n:02}", 2, ("column v int8 | string",) * 5, 9 - n % 9, 2) for n in range(12)]
    conflicts = tuple(Conflict(item.tenant, item.schemas, item.blocks, str(item), item.alone) for item in found)
    scan = ScanResult(1, 1, 0.0, 0.0, 0.0, measures={"windows": 3}, conflicts=conflicts)
    figures = store_figures(debt_of(scan), scan, BLOCKS)
    status = CompactionPolicyStatus.model_validate(figures)
    assert len(status.conflicts) == 10
    assert status.debt is not None
    assert [(measure.name, measure.value) for measure in status.debt.measures] == [("windows", 3)]
    first = status.conflicts[0]
    assert (first.tenant, first.classes, first.sources) == ("t00", 2, 9)
    named = "; ".join(["column v int8 | string"] * 3)
    assert first.message == f"2 schemas of `t00` cannot be merged: {named}; 2 more"
    unknown = SchemaConflict("t", 2, (), 2)
    assert str(unknown) == "2 schemas of `t` cannot be merged: footers that say what they hold cannot be read"


def sources_of(candidate: Candidate, *, parked: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    planner = Planner("blocks", "uid", PlanLimits(1 << 60, 100), PlanTrigger())
    plan = planner.plan([candidate], {}, JobInventory(parked={candidate.target: parked}), now=NOW)
    return [group.sources for job in plan.jobs for group in job.groups]


class TestApart:
    """Each of the parts that failed by itself gets the job that it had; their names keep them parked. No job is made of
    the single block that is left.
    """

    def test_what_failed_by_itself_stays_apart(self) -> None:
        left = batch("2", "3", "6", "8")
        assert sources_of(left, parked=[("1", "2", "3", "4"), ("2", "3"), ("6",)]) == [("2", "3"), ("6",)]

    def test_the_largest_counts(self) -> None:
        left = batch("1", "2", "3")
        assert sources_of(left, parked=[("1",), ("1", "2"), ("2",)]) == [("1", "2")]

    def test_what_is_not_there_as_a_whole_does_not(self) -> None:
        left = batch("1", "2")
        assert sources_of(left, parked=[("2", "3"), ("1", "2", "3")]) == [("1", "2")]

    def test_each_source_is_in_one_part_and_sizes_are_shared_out(self) -> None:
        (group,) = batch("1", "2", "3", "4").groups
        parts = group.apart([("1", "2"), ("2", "3")])
        assert [part.sources for part in parts] == [("1", "2"), ("3", "4")]
        assert [part.copy_bytes for part in parts] == [20, 20]
        assert all(part.divisible and part.identities == part.sources for part in parts)

    def test_segments_of_a_group_stay_together(self) -> None:
        group = GroupCandidate(("1", "2"), ("a", "b"), 20, 0)
        assert group.apart([("1",)]) == (group,)
