"""Jobs of other processes beside those of a run: `test_block_runs.py` and `tests/crash` have real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from compaction.api.job.job import CompactionJobSpec
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.core.planning.debt import HeldJob, ScanResult
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError
from compaction.local.run.once import SharedStore
from compaction.storage.adapter import Sensed, SenseRequest, Swept

THEIRS = HeldJob("b", 0, ("b1", "b2"))
REQUEST = SenseRequest(1, 1, 0.0, jobs={"mine": HeldJob("a", 0, ("a1",))})
SPEC = CompactionJobSpec.model_construct()


def candidate(target: str) -> Candidate:
    names = (f"{target}1", f"{target}2")
    return Candidate(target, "", "", (GroupCandidate(names, names, 8, 4),), (), 8, 2, sensed_at=0.0)


class Store:
    """Offers two targets, and remembers tokens."""

    def __init__(self, outdated: frozenset[str] = frozenset()) -> None:
        self.outdated = outdated
        self.tokens: dict[str, int] = {}
        self.retired: list[str] = []
        self.asked: list[set[str]] = []

    def sense(self, request: SenseRequest) -> Sensed:
        self.asked.append(set(request.jobs))
        reading = ScanResult(1, 1, 0.0, 0.0, 0.0, candidates=(candidate("a"), candidate("b")))
        return Sensed(replace(reading, outdated=self.outdated & request.jobs.keys()), None)

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        return Swept(0, 0, (), None)

    def high_water(self, target: str, job: str) -> int:
        return self.tokens.get(job, 0)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        self.tokens[job] = token

    def retire(self, target: str, job: str) -> None:
        self.retired.append(job)

    def close(self) -> None:
        """Nothing is open."""


def test_what_others_have_is_debt_and_in_no_candidate() -> None:
    store = Store()
    reading = SharedStore(store, lambda: {"theirs": THEIRS}).sense(REQUEST).reading
    assert [item.target for item in reading.candidates] == ["a"]
    assert [(item.sources, item.bytes) for item in reading.beyond] == [(2, 8)]
    assert [(row.reason, row.count, row.example) for row in reading.left_out] == [("JobUnfinished", 2, "theirs")]
    assert store.asked == [{"mine", "theirs"}]


def test_what_a_job_of_others_cannot_have_any_more_is_offered() -> None:
    store = Store(outdated=frozenset({"theirs", "mine"}))
    reading = SharedStore(store, lambda: {"theirs": THEIRS}).sense(REQUEST).reading
    assert len(reading.candidates) == 2
    assert store.asked == [{"mine", "theirs"}, {"mine"}]
    assert reading.outdated == {"mine"}, "the reconciler is told of its own"


def test_others_that_cannot_be_asked_for_are_a_problem_of_the_scan() -> None:
    def away() -> Mapping[str, HeldJob]:
        raise CompactionError("the index is away")

    problem = SharedStore(Store(), away).sense(REQUEST).reading.problem
    assert problem is not None
    assert problem.message == "the index is away"


def test_a_job_that_another_process_has_claimed_since_is_left_to_it() -> None:
    store = Store()
    shared = SharedStore(store, dict)
    assert shared.high_water("a", "mine") == 0
    shared.claim(SPEC, job="mine", token=1)
    assert shared.high_water("a", "mine") == 1
    store.claim(SPEC, job="mine", token=2)
    with pytest.raises(ClaimRefusedError, match="another process has claimed it with token 2") as refused:
        shared.high_water("a", "mine")
    assert refused.value.refusal is ClaimRefusal.BUSY
    with pytest.raises(ClaimRefusedError):
        shared.retire("a", "mine")
    assert store.retired == []


def test_only_own_claims_are_retired() -> None:
    store = Store()
    shared = SharedStore(store, dict)
    shared.retire("b", "theirs")
    shared.claim(SPEC, job="mine", token=1)
    shared.retire("a", "mine")
    assert store.retired == ["mine"]
