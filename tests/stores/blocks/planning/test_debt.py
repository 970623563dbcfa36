"""Debt of block stores, and what is left of a batch that was put apart."""

from __future__ import annotations

from compaction.api.policy.policy import CompactionPolicyStatus
from compaction.blocks.kind import BLOCKS, READS_AFTER, measures_of, read_amplification
from compaction.blocks.planning.batches import SchemaConflict
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.core.planning.debt import Conflict, ScanResult, TenantDebt, UnofferedDebt, debt_of, total_debt
from compaction.core.planning.planner import JobInventory, PlanLimits, Planner, PlanTrigger
from compaction.core.reconcile.status.summary import store_figures

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
