"""What is exported about catalogs, from rounds that were really decided."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from compaction.api.catalog.catalog import CatalogCompactionStatus
from compaction.api.catalog.reasons import Outcome, Process, Reason
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
from compaction.kube.informer.cache import CatalogKey
from compaction.kube.metrics.registry import Metrics
from support.catalogs.rounds import report
from support.cluster.catalog_coordinator import HISTORY, START, CatalogCoordinator

KEY = CatalogKey("ns", "orders")
SILENT = (Unanswered("b", Reason.NO_ANSWER, "connection refused"),)


@dataclass
class Measured(CatalogCoordinator):
    """A coordinator whose decisions are measured, as the controller does it."""

    metrics: Metrics = field(default_factory=Metrics)

    def run(self, *results: Result) -> CatalogDecision:
        before = self.memory.status or self.status
        decision = super().run(*results)
        self.metrics.catalogs.measure(KEY, before, decision)
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


def test_counters_are_there_before_their_first_event() -> None:
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
        one.metrics.catalogs.measure(KEY, one.status, deleted)
    left = {
        sample.name
        for family in one.metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("catalog") == "orders"
    }
    assert left
    assert all(name.endswith(("_total", "_sum", "_count", "_bucket")) for name in left), left
