"""Which branches a scan names: few, the worst of each measure among them, and what compaction would leave there."""

from __future__ import annotations

from compaction.api.policy.policy_status import MAX_BEHIND
from compaction.staging.answers import furthest_behind
from compaction.staging.compaction import BranchWork
from compaction.staging.refs.branches import BranchRecord
from compaction.staging.sensor import BranchDebt
from compaction.staging.staged.counters import Counts


def debt(name: str, *, writes: int = 0, tombstones: int = 0, sealed: int = 1, named: int | None = None) -> BranchDebt:
    tokens = tuple(f"{name}-{number}" for number in range(sealed))
    record = BranchRecord(commit_id="c", staging_token=f"{name}-staging", sealed_tokens=tokens)
    chosen = tokens if named is None else tokens[sealed - named :]
    work = BranchWork("lake", name, "c", "", chosen) if chosen else None
    return BranchDebt(name, record, work, Counts(writes, tombstones, writes), 0.0)


def names(*debts: BranchDebt) -> list[str]:
    return [item.target for item in furthest_behind("lake", debts)]


def test_the_worst_of_each_measure_is_named() -> None:
    small = [debt(f"small-{number}", writes=10, tombstones=5) for number in range(20)]
    worst = [
        debt("deleted", writes=900, tombstones=900),
        debt("sealed", writes=1, sealed=50),
        debt("written", writes=999),
    ]
    found = names(*small, *worst)
    assert len(found) == MAX_BEHIND
    assert set(found[:3]) == {"lake/deleted", "lake/sealed", "lake/written"}
    assert names(*reversed([*small, *worst])) == found, "the order of the scan does not matter"


def test_a_branch_without_work_is_not_behind() -> None:
    assert names(debt("idle", sealed=0)) == []


def test_what_compaction_leaves() -> None:
    branch = debt("main", writes=9, tombstones=4, sealed=7, named=5)
    (own,) = furthest_behind("lake", [branch])
    (live,) = furthest_behind("lake", [branch], merges=True)
    assert (dict(own.measures)["tombstonesAfter"], dict(own.measures)["sealedTokensAfter"]) == (0, 2)
    assert (dict(live.measures)["tombstonesAfter"], dict(live.measures)["sealedTokensAfter"]) == (4, 3)
