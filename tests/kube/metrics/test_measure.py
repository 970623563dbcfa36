"""What alerts rest on: counters that exist before their first event, and numbers that say what happened."""

from __future__ import annotations

from dataclasses import replace

from compaction.api.enums import JobReason
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.actions import Decision
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.measure import CleanupState, measure
from compaction.kube.metrics.registry import Metrics
from support.cluster.block_world import SIZE, PlainBlockCluster
from support.cluster.world import PlainCluster

KEY = CacheKey("ns", "logs")


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"namespace": "ns", "policy": "logs", **labels})


def measured(world: PlainCluster, metrics: Metrics, cleanup: CleanupState | None = None) -> Decision:
    """One reconcile as the controller does it: decide, measure, act."""
    snapshot = world.snapshot()
    decision = world.reconcile()
    measure(metrics, KEY, snapshot, decision, cleanup or CleanupState())
    return decision


def started() -> tuple[PlainCluster, str]:
    world = PlainCluster()
    world.add_log("/ra/a")
    world.settle()
    world.announce()
    world.settle()
    return world, world.only_job()


def test_counters_are_there_before_their_first_event() -> None:
    """A rate needs a sample before the event: the first one of a series that appears with it is never seen."""
    world, metrics = PlainCluster(), Metrics()
    measured(world, metrics)
    assert value(metrics, "compaction_fenced_commits_total") == 0
    assert value(metrics, "compaction_cleanup_bytes_total") == 0
    for outcome in ("Succeeded", "Failed", "Expired", "Lost", "Revoked"):
        assert value(metrics, "compaction_job_attempts_total", outcome=outcome) == 0
    assert value(metrics, "compaction_job_attempts_total", outcome="Running") is None


def test_a_commit_that_the_store_refused_is_counted_once() -> None:
    world, job = started()
    metrics = Metrics()
    measured(world, metrics)
    world.report(job, outcome="Failed", reason=JobReason.STALE_TOKEN, charged=False)
    for _ in range(3):
        measured(world, metrics)
    assert value(metrics, "compaction_fenced_commits_total") == 1
    assert value(metrics, "compaction_job_attempts_total", outcome="Failed") == 1


def test_a_lease_that_went_silent_is_an_expired_attempt_and_no_refused_commit() -> None:
    world, job = started()
    metrics = Metrics()
    measured(world, metrics)
    world.wall += world.leases[job].duration + 1
    measured(world, metrics)
    assert value(metrics, "compaction_job_attempts_total", outcome="Expired") == 1
    assert value(metrics, "compaction_fenced_commits_total") == 0


def test_a_late_cleanup_is_told_until_it_is_done_and_forgotten_with_the_policy() -> None:
    world, metrics = PlainCluster(), Metrics()
    measured(world, metrics, CleanupState(overdue=7200.0, problems=2))
    assert value(metrics, "compaction_cleanup_overdue_seconds") == 7200
    assert value(metrics, "compaction_cleanup_problems") == 2
    measured(world, metrics, CleanupState())
    assert value(metrics, "compaction_cleanup_overdue_seconds") == 0
    metrics.forget_policy(KEY)
    assert value(metrics, "compaction_cleanup_overdue_seconds") is None
    assert value(metrics, "compaction_cleanup_problems") is None


def test_a_block_store_has_gauges_of_its_own_until_it_is_forgotten() -> None:
    world, metrics = PlainBlockCluster(), Metrics()
    world.add_blocks(8, "a")
    world.add_blocks(1, "b")
    world.settle()
    measured(world, metrics)
    assert value(metrics, "compaction_debt_sources") == 8
    assert value(metrics, "compaction_debt_bytes") == 8 * SIZE
    assert value(metrics, "compaction_debt_level_bytes", level="0") == 8 * SIZE
    assert value(metrics, "compaction_blocks") == 9
    assert value(metrics, "compaction_read_amplification") == 4.5
    assert value(metrics, "compaction_missing_live_entries") is None
    world.live.clear()
    world.wall += 61
    world.settle()
    measured(world, metrics)
    assert value(metrics, "compaction_debt_level_bytes", level="0") == 0, "a level without debt is told, too"
    metrics.forget_policy(KEY)
    for name in ("debt_sources", "targets", "blocks", "read_amplification"):
        assert value(metrics, f"compaction_{name}") is None
    assert value(metrics, "compaction_debt_level_bytes", level="0") is None


def test_what_the_last_job_changed_is_measured_until_the_policy_is_forgotten() -> None:
    world, job = started()
    metrics = Metrics()
    measured(world, metrics)
    assert world.commit(job, world.leases[job].token)
    changes = [{"name": "tombstones", "before": 7, "after": 2}]
    world.report(job, receipt=world.receipt(job, world.leases[job].token) | {"measures": changes})
    measured(world, metrics)
    assert value(metrics, "compaction_last_job_measure_before", measure="tombstones") == 7
    assert value(metrics, "compaction_last_job_measure_after", measure="tombstones") == 2
    metrics.forget_policy(KEY)
    assert value(metrics, "compaction_last_job_measure_before", measure="tombstones") is None


def test_segment_logs_have_none_of_them() -> None:
    world, _ = started()
    metrics = Metrics()
    measured(world, metrics)
    assert (value(metrics, "compaction_debt_sources"), value(metrics, "compaction_blocks")) == (1, None)
    assert value(metrics, "compaction_missing_live_entries") == 0


def test_a_store_that_cannot_be_read_has_not_lost_its_debt() -> None:
    world, metrics = PlainBlockCluster(), Metrics()
    world.add_blocks(4)
    world.settle()
    measured(world, metrics)
    assert world.reading is not None
    problem = TargetProblem("s3://lake/blocks", "StoreUnreachable", "no answer")
    world.reading = replace(world.reading, candidates=(), measures={}, problem=problem)
    measured(world, metrics)
    assert value(metrics, "compaction_debt_sources") == 4
    assert value(metrics, "compaction_debt_bytes") == 4 * SIZE
    assert value(metrics, "compaction_blocks") == 4
