"""The column FAULTY, the metric and the alert count the same: parked jobs whose work was not planned again."""

from __future__ import annotations

from compaction.api.enums import JobReason, JobState
from compaction.core.reconcile.policy import reconcile
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.measure import SUPERSEDED, measure
from compaction.kube.metrics.registry import Metrics
from support.cluster.world import F, PlainCluster

POLICY = CacheKey("ns", "logs")
SEGMENT = "0000000000000001.segment"


def parked(reason: JobReason) -> PlainCluster:
    """A policy whose only job is parked for that reason, and is not planned again."""
    world = PlainCluster(limits={"maxAttempts": 1})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    damage = {"source": SEGMENT, "reason": reason.value, "message": "bad", "identity": "id"}
    skipped = [damage] if reason == JobReason.SOURCE_CORRUPT else []
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    world.report(world.only_job(), outcome="Failed", reason=reason.value, skipped=skipped)
    world.logs["/ra/a"].groups.clear()
    look_again(world)
    assert world.in_state(F) == [world.only_job()]
    return world


def look_again(world: PlainCluster) -> None:
    world.wall += 61
    world.renew_all()
    world.rest()


def counted(world: PlainCluster) -> tuple[int, float | None, float | None]:
    """(FAULTY, the metric's Faulty, its Superseded)."""
    metrics, snapshot = Metrics(), world.snapshot()
    measure(metrics, POLICY, snapshot, reconcile(snapshot))

    def jobs(state: str) -> float | None:
        return metrics.registry.get_sample_value(
            "compaction_jobs", {"namespace": "ns", "policy": "logs", "state": state}
        )

    return world.status.faulty, jobs(JobState.FAULTY.value), jobs(SUPERSEDED)


def test_a_job_that_used_up_its_attempts_is_counted() -> None:
    assert counted(parked(JobReason.STORE_UNREADABLE)) == (1, 1, 0)


def test_a_job_whose_sources_changed_is_not() -> None:
    assert counted(parked(JobReason.SOURCES_CHANGED)) == (0, 0, 1)


def test_a_job_with_a_damaged_source_is_counted_until_the_quarantine_is_over() -> None:
    world = parked(JobReason.SOURCE_CORRUPT)
    assert counted(world) == (1, 1, 0)
    world.quarantine_identity["/ra/a", SEGMENT] = "restored"
    look_again(world)
    assert world.status.quarantined == ()
    assert counted(world) == (0, 0, 1)
