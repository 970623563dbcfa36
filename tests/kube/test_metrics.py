"""What alerts rest on: counters that exist before their first event, and numbers that say what happened."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from compaction.api.catalog.catalog import CatalogCompactionStatus
from compaction.api.catalog.reasons import Outcome, Process, Reason
from compaction.api.enums import JobReason, PolicyReason
from compaction.api.job.job_status import JobReport, ResourceUsage
from compaction.api.policy.store import STANDING, conditions_for
from compaction.catalogs.compaction.observations import (
    Broken,
    CatalogDecision,
    CatalogMemory,
    Delivered,
    LogRead,
    Result,
    RoundWork,
    Saved,
)
from compaction.catalogs.compaction.round import Unanswered
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.reports import Cause
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.actions import Decision
from compaction.kube.informer.cache import CacheKey, CatalogKey
from compaction.kube.metrics.measure import CleanupState, measure
from compaction.kube.metrics.registry import Metrics
from compaction.segments.reasons import SegmentReason
from support.catalogs.rounds import report
from support.cluster.block_world import SIZE, PlainBlockCluster
from support.cluster.catalog_coordinator import HISTORY, START, CatalogCoordinator
from support.cluster.world import PlainCluster

KEY = CacheKey("ns", "logs")


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"namespace": "ns", "policy": "logs", **labels})


def attempts(metrics: Metrics, outcome: str, reason: str) -> float | None:
    return value(metrics, "compaction_job_attempts_total", outcome=outcome, reason=reason)


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
    for outcome, reason in (
        ("Succeeded", "Completed"),
        ("Failed", "InternalError"),
        ("Failed", "StoreLocked"),
        ("Expired", "LeaseExpired"),
        ("Lost", "WorkerLost"),
        ("Revoked", "Revoked"),
    ):
        assert attempts(metrics, outcome, reason) == 0
    assert attempts(metrics, "Running", "") is None
    assert value(metrics, "compaction_cpu_seconds_total", role="executor") == 0


def test_a_commit_that_the_store_refused_is_counted_once() -> None:
    world, job = started()
    metrics = Metrics()
    measured(world, metrics)
    world.report(job, outcome="Failed", reason=JobReason.STALE_TOKEN, charged=False)
    for _ in range(3):
        measured(world, metrics)
    assert value(metrics, "compaction_fenced_commits_total") == 1
    assert attempts(metrics, "Failed", "StaleToken") == 1


def test_a_lease_that_went_silent_is_an_expired_attempt_and_no_refused_commit() -> None:
    world, job = started()
    metrics = Metrics()
    measured(world, metrics)
    world.wall += world.leases[job].duration + 1
    measured(world, metrics)
    assert attempts(metrics, "Expired", "LeaseExpired") == 1
    assert value(metrics, "compaction_job_attempts_unmeasured_total") == 1, "who went silent said nothing of its cost"
    assert value(metrics, "compaction_fenced_commits_total") == 0


def test_a_word_that_no_version_knows_makes_no_series() -> None:
    world, job = started()
    metrics = Metrics()
    measured(world, metrics)
    world.report(job, outcome="Failed", reason="MadeUpByAWorker")
    measured(world, metrics)
    assert attempts(metrics, "Failed", "Other") == 1
    assert attempts(metrics, "Failed", "MadeUpByAWorker") is None


def test_an_attempt_adds_what_it_used_and_a_peak_that_is_not_known_goes() -> None:
    world, job = started()
    metrics = Metrics()
    measured(world, metrics)
    used = {"driverCpuSeconds": 0.5, "executorCpuSeconds": 2.0, "bytesRead": 10, "bytesWritten": 4}
    world.report(job, outcome="Failed", usage={**used, "executorPeakBytes": 7})
    for _ in range(3):
        measured(world, metrics)
    assert value(metrics, "compaction_cpu_seconds_total", role="driver") == 0.5
    assert value(metrics, "compaction_cpu_seconds_total", role="executor") == 2
    assert value(metrics, "compaction_bytes_read_total") == 10
    assert value(metrics, "compaction_bytes_written_total") == 4
    assert value(metrics, "compaction_last_attempt_peak_bytes", role="executor") == 7
    assert value(metrics, "compaction_last_attempt_peak_bytes", role="driver") is None
    assert value(metrics, "compaction_job_attempts_unmeasured_total") == 0
    world.announce()
    world.wall += 70
    world.renew_all()
    for _ in range(3):
        measured(world, metrics)
    world.finish(job)
    world.leases[job].report = replace_usage(world, job)
    measured(world, metrics)
    assert value(metrics, "compaction_cpu_seconds_total", role="driver") == 0.75
    assert value(metrics, "compaction_last_attempt_peak_bytes", role="executor") is None
    assert value(metrics, "compaction_job_attempts_unmeasured_total") == 1, "of its tasks nothing is known"


def replace_usage(world: PlainCluster, job: str) -> JobReport | None:
    said = world.leases[job].report
    return said.model_copy(update={"usage": ResourceUsage(driver_cpu_seconds=0.25)}) if said is not None else None


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


def test_a_scan_that_fails_makes_the_last_good_one_older_and_no_news() -> None:
    world, metrics = PlainCluster(), Metrics()
    began = world.wall
    measured(world, metrics)
    assert value(metrics, "compaction_last_scan_timestamp_seconds") == began, "none has ended: since when it tries"
    world.settle()
    measured(world, metrics)
    good = value(metrics, "compaction_last_scan_timestamp_seconds")
    assert good is not None
    assert good > began
    world.problem = TargetProblem("/ra", PolicyReason.STORE_UNREACHABLE, "no answer")
    world.pass_time(130, step=65)
    measured(world, metrics)
    assert value(metrics, "compaction_last_scan_timestamp_seconds") == good
    assert value(metrics, "compaction_scan_interval_seconds") == 60
    metrics.forget_policy(KEY)
    assert value(metrics, "compaction_last_scan_timestamp_seconds") is None


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


# What is exported about catalogs, from rounds that were really decided.

CATALOG = CatalogKey("ns", "orders")
SILENT = (Unanswered("b", Reason.NO_ANSWER, "connection refused"),)


@dataclass
class Measured(CatalogCoordinator):
    """A coordinator whose decisions are measured, as the controller does it."""

    metrics: Metrics = field(default_factory=Metrics)

    def run(self, *results: Result) -> CatalogDecision:
        before = self.memory.status or self.status
        decision = super().run(*results)
        self.metrics.catalogs.measure(CATALOG, before, decision)
        return decision

    def value(self, name: str, **labels: str) -> float | None:
        found = {"namespace": "ns", "catalog": "orders", **labels}
        return self.metrics.registry.get_sample_value(f"compaction_catalog_{name}", found)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """The labels beside namespace and catalog to the value."""
        return {
            tuple(
                value for label, value in sample.labels.items() if label not in ("namespace", "catalog")
            ): sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"compaction_catalog_{name}"
        }


def after_a_round() -> Measured:
    one = Measured()
    one.run()
    one.seconds += 2.5
    one.whole_round()
    return one


def test_counters_of_catalogs_are_there_before_their_first_event() -> None:
    """A rate needs a sample before the event."""
    one = Measured()
    one.run()
    for process in Process:
        for outcome in Outcome:
            assert one.value("process_ends_total", process=process.value, outcome=outcome.value) == 0
    for counter in ("versions_cut_total", "bytes_cut_total", "fenced_total"):
        assert one.value(counter) == 0
    assert one.value("round_seconds_count") == 0


def test_a_round_shows_how_long_the_history_is_and_what_was_cut() -> None:
    one = after_a_round()
    assert (one.value("earliest_version"), one.value("latest_version")) == (5, 6)
    assert (one.value("versions"), one.value("behind_versions")) == (2, 0)
    assert (one.value("versions_cut_total"), one.value("bytes_cut_total")) == (4, 1000)
    assert one.value("process_ends_total", process="Compaction", outcome="Succeeded") == 1
    assert one.value("process_ends_total", process="Propagation", outcome="Succeeded") == 1
    assert one.value("last_outcome", process="Compaction", outcome="Succeeded", reason="Compacted") == 1
    for process in Process:
        ended = one.value("last_end_timestamp_seconds", process=process.value, outcome="Succeeded")
        assert ended == pytest.approx(START + 2.5, abs=1)
    assert (one.value("round_seconds_count"), one.value("round_seconds_sum")) == (1, 2.5)
    assert one.value("low_watermark_timestamp_seconds") == pytest.approx(START - 600.5, abs=1)
    assert one.value("propagated_timestamp_seconds") == pytest.approx(START + 2.5, abs=1)
    assert (one.value("participants", answer="Answered"), one.value("participants", answer="Silent")) == (1, 0)
    assert one.value("condition", condition="Ready", status="True") == 1
    assert one.value("reason", reason="Compacted") == 1


def test_who_pins_the_history_is_one_series_and_the_former_one_goes() -> None:
    one = Measured()
    one.run()
    begun, old = hybrid(int(START * 1000) - 9_000_000), tuple(HISTORY)[1].activation_time
    pinned = report("b", old, cause=Cause.PARTITION, transactions=old, oldest_transaction=begun, clock=one.now)
    one.run(one.heard(one.idle(), pinned))
    one.run(LogRead(HISTORY, one.now), Delivered(old))
    assert one.series("required_timestamp_seconds") == {("Transaction", "b"): pytest.approx(START - 4999, abs=1)}
    assert one.series("pinned_since_timestamp_seconds") == {("Transaction", "b"): pytest.approx(START - 9000, abs=1)}
    assert one.value("behind_versions") == 4
    one.seconds += 61
    one.run()
    one.whole_round()
    assert list(one.series("required_timestamp_seconds")) == [("LowWatermark", "")]
    assert one.series("pinned_since_timestamp_seconds") == {}, "the watermark has no begin"


def test_a_required_time_that_is_not_known_any_more_is_not_shown() -> None:
    one = after_a_round()
    assert len(one.series("required_timestamp_seconds")) == 1
    one.seconds += 61
    one.run()
    one.run(one.heard(one.idle(), unanswered=SILENT))
    one.run(LogRead(HISTORY, one.now))
    assert one.status.required_time is None
    assert one.series("required_timestamp_seconds") == {}


def test_a_silent_participant_is_counted_until_it_answers() -> None:
    one = Measured()
    one.run()
    one.run(one.heard(one.idle(), unanswered=SILENT))
    one.run(LogRead(HISTORY, one.now))
    assert (one.value("participants", answer="Answered"), one.value("participants", answer="Silent")) == (1, 1)
    for process in Process:
        assert one.value("last_outcome", process=process.value, outcome="Aborted", reason="NoAnswer") == 1
        assert one.value("process_ends_total", process=process.value, outcome="Aborted") == 1
    one.seconds += 61
    one.run()
    assert one.value("participants", answer="Silent") == 1, "while they are asked again, the last answer stands"
    one.whole_round()
    assert one.value("participants", answer="Silent") == 0
    assert one.value("last_outcome", process="Compaction", outcome="Aborted", reason="NoAnswer") == 0
    assert one.value("last_outcome", process="Compaction", outcome="Succeeded", reason="Compacted") == 1
    aborted = one.value("last_end_timestamp_seconds", process="Compaction", outcome="Aborted")
    assert aborted == pytest.approx(START, abs=1), "when it last ended so stays"


def test_the_two_processes_end_apart() -> None:
    one = Measured()
    one.run()
    one.run(one.heard(one.idle()))
    one.run(LogRead(HISTORY, one.now))
    one.run(Saved(SnapshotOutcome.FENCED, 5))
    assert one.value("fenced_total") == 1
    assert one.value("round_seconds_count") == 0, "the other process runs"
    one.seconds += 7
    one.run(Delivered(one.now))
    assert (one.value("round_seconds_count"), one.value("round_seconds_sum")) == (1, 7)
    assert one.value("last_outcome", process="Compaction", outcome="Failed", reason="Fenced") == 1
    assert one.value("last_outcome", process="Propagation", outcome="Succeeded", reason="Propagated") == 1
    assert one.value("versions_cut_total") == 0


def test_a_remembered_trigger_is_a_round_of_its_own() -> None:
    one = Measured()
    one.run()
    one.seconds += 301
    one.run()
    one.run(Broken(RoundWork.ASK, Reason.PARTICIPANTS_UNKNOWN, "no answer of the API server"))
    assert (one.value("round_seconds_count"), one.value("round_seconds_sum")) == (1, 301)
    one.seconds += 2
    one.whole_round()
    assert (one.value("round_seconds_count"), one.value("round_seconds_sum")) == (2, 303)


def test_a_new_coordinator_counts_its_own_cuts_and_shows_what_was_written() -> None:
    first = after_a_round()
    other = Measured(status=first.status, identity="operator-1", transitions=4, seconds=10)
    other.run()
    assert other.value("versions_cut_total") == 0, "the first one has counted them"
    assert (other.value("earliest_version"), other.value("latest_version")) == (5, 6)
    assert other.value("last_outcome", process="Compaction", outcome="Succeeded", reason="Compacted") == 1
    ended = other.value("last_end_timestamp_seconds", process="Compaction", outcome="Succeeded")
    assert ended == pytest.approx(START + 2.5, abs=1)


def test_an_empty_log_has_no_versions() -> None:
    one = Measured(status=CatalogCompactionStatus(earliest_version=0, latest_version=0))
    one.run()
    assert (one.value("versions"), one.value("behind_versions")) == (0, 0)


def test_a_deleted_catalog_leaves_counters_only() -> None:
    one = after_a_round()
    deleted = CatalogDecision(CatalogMemory(), forget=True)
    for _ in range(2):
        one.metrics.catalogs.measure(CATALOG, one.status, deleted)
    left = {
        sample.name
        for family in one.metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("catalog") == "orders"
    }
    assert left
    assert all(name.endswith(("_total", "_sum", "_count", "_bucket")) for name in left), left


# Conditions as gauges: the status a condition has is 1, the others 0, and nothing is left of a deleted policy.

POLICY, OTHER = CacheKey("storage", "logs"), CacheKey("storage", "lake")


def stand(metrics: Metrics, policy: CacheKey, reason: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    metrics.conditions.set(
        policy, conditions_for((), reason=reason, message="the particulars", observed_generation=1, now=now)
    )


def shown(metrics: Metrics, policy: CacheKey) -> dict[tuple[str, ...], float]:
    """The series of a policy: (condition, status) or (reason,) to the value."""
    return {
        tuple(value for name, value in sample.labels.items() if name not in ("namespace", "policy")): sample.value
        for family in metrics.registry.collect()
        if family.name.startswith(("compaction_policy_condition", "compaction_policy_reason"))
        for sample in family.samples
        if (sample.labels["namespace"], sample.labels["policy"]) == policy
    }


@pytest.mark.parametrize("reason", PolicyReason)
def test_each_condition_has_one_status_and_ready_one_reason(reason: PolicyReason) -> None:
    metrics = Metrics()
    stand(metrics, POLICY, reason)
    series, standing = shown(metrics, POLICY), STANDING[reason]
    assert [status for status in ("True", "False", "Unknown") if series["Ready", status]] == [standing.ready.value]
    for kind in ("Reconciling", "Stalled"):
        assert series[kind, "True"] == (standing.abnormal == kind)
        assert series[kind, "True"] + series[kind, "False"] == 1
    assert series[reason.value,] == 1


def test_a_former_reason_goes_to_zero_and_a_deleted_policy_leaves_nothing() -> None:
    metrics = Metrics()
    for reason in (PolicyReason.SENSING, SegmentReason.ROOT_NOT_FOUND, PolicyReason.SCHEDULED):
        stand(metrics, POLICY, reason)
        stand(metrics, OTHER, reason)
    assert shown(metrics, POLICY)["RootNotFound",] == 0
    assert shown(metrics, POLICY)["Scheduled",] == 1
    metrics.forget_policy(POLICY)
    assert shown(metrics, POLICY) == {}
    assert shown(metrics, OTHER)["Ready", "True"] == 1
    metrics.forget_policy(POLICY)


def test_a_policy_that_nobody_has_looked_at_is_not_ready_and_has_no_reason() -> None:
    metrics = Metrics()
    metrics.conditions.set(POLICY, ())
    assert shown(metrics, POLICY) == {
        ("Ready", "True"): 0,
        ("Ready", "False"): 0,
        ("Ready", "Unknown"): 1,
        ("Reconciling", "True"): 0,
        ("Reconciling", "False"): 1,
        ("Stalled", "True"): 0,
        ("Stalled", "False"): 1,
    }
