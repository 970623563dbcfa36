"""The metrics of catalogs: how long a history is, who pins it, how the two processes of a round end.

Times are Unix timestamps, so that a query knows their age also when no round ends: `time() - ...`. A label holds the
name of a participant only where a catalog has one series of it: the participant that pins the history.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from compaction.api.catalog.catalog import ANSWERED, CatalogCompactionStatus, ProcessStatus, RequiredTime
from compaction.api.catalog.reasons import Outcome, Process, Reason, Stage
from compaction.catalogs.compaction.observations import CatalogDecision
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.conditions import ConditionMetrics

_CATALOG: Final = ("namespace", "catalog")
_PIN: Final = ("reason", "participant")
SILENT: Final = "Silent"


class CatalogMetrics:
    """Everything that is exported per catalog. Gauges of a deleted catalog go, counters stay, as rates need them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"compaction_catalog_{name}", text, [*_CATALOG, *labels], registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"compaction_catalog_{name}", text, [*_CATALOG, *labels], registry=registry)

        self.conditions = ConditionMetrics(registry, "catalog")
        self.versions = gauge("versions", "Versions that the log of the catalog has")
        self.behind = gauge("behind_versions", "Versions that are kept beyond the two that always stay")
        self.earliest = gauge("earliest_version", "First version of the history")
        self.latest = gauge("latest_version", "Last version of the history")
        self.required = gauge(
            "required_timestamp_seconds", "Time from which on the catalog is needed, by what pins it", *_PIN
        )
        self.pinned = gauge(
            "pinned_since_timestamp_seconds", "Time since when that participant needs it, where it says so", *_PIN
        )
        self.watermark = gauge("low_watermark_timestamp_seconds", "Low watermark of the coordinator")
        self.propagated = gauge("propagated_timestamp_seconds", "Minimum that was propagated last")
        self.participants = gauge("participants", "Participants of the last round, by whether they answered", "answer")
        self.last_outcome = gauge(
            "last_outcome",
            "1 for how and why each process of the last round ended, 0 for what was before",
            *("process", "outcome", "reason"),
        )
        self.last_end = gauge(
            "last_end_timestamp_seconds", "Time at which a process last ended so", "process", "outcome"
        )
        self.ends = counter("process_ends", "Ended processes of rounds", "process", "outcome")
        self.fenced = counter("fenced", "Processes that ended because the coordinator's fencing token was outdated")
        self.versions_cut = counter("versions_cut", "Versions that were cut")
        self.bytes_cut = counter("bytes_cut", "Bytes of updates that snapshots replaced, less those of the snapshots")
        self.round_seconds = Histogram(
            "compaction_catalog_round_seconds",
            "From the first question of a round to the end of both processes",
            [*_CATALOG],
            registry=registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
        )
        self._plain = (self.versions, self.behind, self.earliest, self.latest, self.watermark, self.propagated)
        self._series: dict[CacheKey, dict[Gauge, set[tuple[str, ...]]]] = {}

    def measure(self, key: CacheKey, before: CatalogCompactionStatus, decision: CatalogDecision) -> None:
        """Set the gauges from the status after a decision, count what it added to the one `before` it."""
        status = decision.memory.status
        if decision.forget:
            self.forget(key)
        if status is None:
            return
        self.conditions.set(key, status.conditions)
        self._measure_history(key, status)
        self._measure_answers(key, status)
        self._count(key, before, status, decision)

    def _measure_history(self, key: CacheKey, status: CatalogCompactionStatus) -> None:
        if status.earliest_version is not None and status.latest_version is not None:
            self.earliest.labels(*key).set(status.earliest_version)
            self.latest.labels(*key).set(status.latest_version)
            held = status.latest_version - status.earliest_version + 1 if status.latest_version else 0
            self.versions.labels(*key).set(held)
            self.behind.labels(*key).set(status.debt_versions)
        for gauge, hybrid in ((self.watermark, status.low_watermark), (self.propagated, status.propagated_minimum)):
            if hybrid is not None:
                gauge.labels(*key).set(hybrid.time.timestamp())
        pin = status.required_time
        self._only(key, self.required, pin, pin.time if pin is not None else None)
        self._only(key, self.pinned, pin, pin.since if pin is not None else None)

    def _measure_answers(self, key: CacheKey, status: CatalogCompactionStatus) -> None:
        """While participants are asked, the numbers are those of the round before."""
        round = status.round
        if round is not None and round.stage is not Stage.ASKING:
            for label, number in ((ANSWERED, round.answered), (SILENT, max(0, round.participants - round.answered))):
                self._set(key, self.participants, (label,), number)
        for process, ended in ((Process.COMPACTION, status.compaction), (Process.PROPAGATION, status.propagation)):
            if ended is not None:
                self._measure_end(key, process, ended)
        if status.last_compaction_time is not None:
            labels = (Process.COMPACTION.value, Outcome.SUCCEEDED.value)
            self._set(key, self.last_end, labels, status.last_compaction_time.timestamp())

    def _measure_end(self, key: CacheKey, process: Process, ended: ProcessStatus) -> None:
        shown = (process.value, ended.outcome.value, ended.reason)
        for known in self._known(key, self.last_outcome) | {shown}:
            if known[0] == process:
                self._set(key, self.last_outcome, known, known == shown)
        self._set(key, self.last_end, (process.value, ended.outcome.value), ended.finished_at.timestamp())

    def _count(
        self, key: CacheKey, before: CatalogCompactionStatus, after: CatalogCompactionStatus, decision: CatalogDecision
    ) -> None:
        """Counters exist from the first decision on: one that appears with its first event has never grown."""
        for process in Process:
            for outcome in Outcome:
                self.ends.labels(*key, process.value, outcome.value)
        for ended in decision.ended:
            self.ends.labels(*key, ended.process.value, ended.finding.outcome.value).inc()
        self.fenced.labels(*key).inc(sum(ended.finding.reason is Reason.FENCED for ended in decision.ended))
        self.versions_cut.labels(*key).inc(max(0, after.versions_cut - before.versions_cut))
        self.bytes_cut.labels(*key).inc(max(0, after.bytes_cut - before.bytes_cut))
        durations = self.round_seconds.labels(*key)
        for seconds in decision.round_seconds:
            durations.observe(seconds)

    def _only(self, key: CacheKey, gauge: Gauge, pin: RequiredTime | None, moment: datetime | None) -> None:
        """The series of the pin that is; that of the one before goes, so that names do not add up."""
        labels = (pin.reason, pin.participant) if pin is not None and moment is not None else None
        known = self._known(key, gauge)
        for other in known - {labels}:
            gauge.remove(*key, *other)
            known.discard(other)
        if labels is not None and moment is not None:
            self._set(key, gauge, labels, moment.timestamp())

    def _known(self, key: CacheKey, gauge: Gauge) -> set[tuple[str, ...]]:
        return self._series.setdefault(key, {}).setdefault(gauge, set())

    def _set(self, key: CacheKey, gauge: Gauge, labels: tuple[str, ...], value: float) -> None:
        self._known(key, gauge).add(labels)
        gauge.labels(*key, *labels).set(value)

    def forget(self, key: CacheKey) -> None:
        """Drop the gauges of a deleted catalog."""
        self.conditions.forget(key)
        for gauge in self._plain:
            gauge.labels(*key)  # `remove` insists that the series exists
            gauge.remove(*key)
        for gauge, series in self._series.pop(key, {}).items():
            for labels in series:
                gauge.remove(*key, *labels)
