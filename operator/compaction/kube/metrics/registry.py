"""Every metric the operator exports, in one registry of its own (docs/design/api-conventions.md#names-of-metrics).

Names follow client-go and controller-runtime where they have one (`workqueue_*`, `rest_client_*`,
`leader_election_master_status`), so that existing dashboards work. Labels never hold the name of a target or a job:
cardinality is bounded by the number of policies and catalogs. Thread safe, as prometheus-client is: the elector's
thread, the main loop and the HTTP thread all touch it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compaction.catalogs.operator.metrics import CatalogMetrics
from compaction.kube.client.transport import ApiCall
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.conditions import ConditionMetrics
from compaction.registry import all_kinds

_POLICY = ("namespace", "policy")
_WORK = (1, 2, 5, 10, 30, 60, 120, 300, 900, 3600)
_LATENCY = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class _WatchAges(Collector):
    """Computes ages at scrape time, so that a silent watch shows as a growing number."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.last: dict[str, float] = {}

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "compaction_watch_last_event_age_seconds",
            "Seconds since the last event of a watched kind; compare with how often the kind changes",
            labels=["kind"],
        )
        for kind, moment in tuple(self.last.items()):
            family.add_metric([kind], max(0.0, self.clock() - moment))
        yield family


class QueueGauges:
    """The work queue's view of the metrics (`kube.informer.queue.QueueMetrics`)."""

    def __init__(self, registry: CollectorRegistry, name: str) -> None:
        depth = Gauge("workqueue_depth", "Keys waiting to be reconciled", ["name"], registry=registry)
        running = Gauge("workqueue_running", "Keys being reconciled now", ["name"], registry=registry)
        adds = Counter("workqueue_adds", "Keys added", ["name"], registry=registry)
        retries = Counter("workqueue_retries", "Keys put back after a failure", ["name"], registry=registry)
        wait = Histogram(
            "workqueue_queue_duration_seconds", "Wait before handling", ["name"], registry=registry, buckets=_LATENCY
        )
        self._total = Counter("compaction_reconcile", "Reconciliations", ["result"], registry=registry)
        self._seconds = Histogram(
            "compaction_reconcile_seconds", "Duration of a reconciliation", registry=registry, buckets=_LATENCY
        )
        self._depth, self._running = depth.labels(name), running.labels(name)
        self._adds, self._retries, self._wait = adds.labels(name), retries.labels(name), wait.labels(name)

    def depth(self, ready: int, running: int) -> None:
        """Report how many keys wait and how many are being handled."""
        self._depth.set(ready)
        self._running.set(running)

    def added(self) -> None:
        """A key was added."""
        self._adds.inc()

    def retried(self) -> None:
        """A key failed and was put back."""
        self._retries.inc()

    def waited(self, seconds: float) -> None:
        """A key's handling starts after this long a wait."""
        self._wait.observe(seconds)

    def handled(self, seconds: float, *, ok: bool) -> None:
        """A key's handling ended."""
        self._total.labels("success" if ok else "error").inc()
        self._seconds.observe(seconds)


class Metrics:
    """The registry and one attribute per metric. Make one per process (tests make their own)."""

    def __init__(self, *, version: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, which no query reads
        registry = self.registry = CollectorRegistry()
        self._watch_ages = _WatchAges(clock)
        registry.register(self._watch_ages)
        self._clock = clock
        self.build = Info("compaction_build", "Version of the running operator", registry=registry)
        self.build.info({"version": version})

        self.queue = QueueGauges(registry, "policies")
        self.leader = Gauge(
            "leader_election_master_status", "1 while this replica leads, else 0", ["name"], registry=registry
        )
        self.lease_renew_seconds = Histogram(
            "compaction_lease_renew_seconds", "Coordinator lease renewals", ["result"], registry=registry
        )
        self.lease_renew_delay_seconds = Histogram(
            "compaction_lease_renew_delay_seconds",
            "From when a renewal of the coordinator's Lease was due to when it was sent",
            registry=registry,
            buckets=_LATENCY,
        )
        self.loop_lag_seconds = Gauge(
            "compaction_event_loop_lag_seconds", "How late the main loop last ran its heartbeat", registry=registry
        )
        self.requests = Counter("rest_client_requests", "API requests", ["verb", "resource", "code"], registry=registry)
        self.request_seconds = Histogram(
            "rest_client_request_duration_seconds", "API request latency", ["verb"], registry=registry, buckets=_LATENCY
        )
        self.sweep_repairs = Counter(
            "compaction_cache_repairs", "Objects a relist had to repair", ["kind", "change"], registry=registry
        )
        self.events_dropped = Counter(
            "compaction_events_dropped", "Kubernetes Events that could not be posted", registry=registry
        )

        self.workers_held = Gauge(
            "compaction_workers_held", "Workers of all policies, with --max-workers or its like", registry=registry
        )
        self.held_since: datetime | None = None
        hold = Gauge(
            "compaction_hold_age_seconds", "Seconds since the operator was put on hold; 0 without", registry=registry
        )
        hold.set_function(self._hold_age)
        self.limits = Gauge(
            "compaction_operator_limit", "Limits over all policies; absent without one", ["limit"], registry=registry
        )
        self._of_sink(registry)
        self._of_policies(registry)
        self._count_for_policies(registry)
        self.catalogs = CatalogMetrics(registry)

    def _of_sink(self, registry: CollectorRegistry) -> None:
        """Register the metrics of the sink of CloudEvents."""
        self.sink_delivered = Counter(
            "compaction_cloudevents_delivered", "CloudEvents that the sink has taken", ["type"], registry=registry
        )
        self.sink_failures = Counter(
            "compaction_cloudevents_failures", "Tries to deliver a CloudEvent that failed", registry=registry
        )
        self.sink_refused = Counter(
            "compaction_cloudevents_refused", "CloudEvents given up because the sink refused them", registry=registry
        )
        self.sink_bare = Counter(
            "compaction_cloudevents_without_receipt",
            "CloudEvents of succeeded jobs that were deleted before their event was delivered",
            registry=registry,
        )
        self.sink_waiting = Gauge(
            "compaction_cloudevents_undelivered", "CloudEvents that the sink has not taken yet", registry=registry
        )
        self.sink_oldest = Gauge(
            "compaction_cloudevents_oldest_age_seconds",
            "Age of the oldest undelivered CloudEvent",
            registry=registry,
        )
        self.sink_lost = Counter(
            "compaction_cloudevents_lost",
            "CloudEvents given up because too many of an object waited",
            registry=registry,
        )

    def _of_policies(self, registry: CollectorRegistry) -> None:
        """Register the metrics of each policy."""

        def per_policy(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"compaction_{name}", text, [*_POLICY, *labels], registry=registry)

        self.conditions = ConditionMetrics(registry)
        self._of_scans(per_policy)
        self.quarantined = per_policy("quarantined_sources", "Sources in quarantine because their data is damaged")
        self.last_job_before, self.last_job_after = _last_job_gauges(registry)
        self.cleanup_overdue_seconds = per_policy(
            "cleanup_overdue_seconds", "For how long the oldest deletion had been due at the last scan of the store"
        )
        self.cleanup_problems = per_policy("cleanup_problems", "Targets that the last sweep could not clean")
        self.jobs = per_policy("jobs", "Jobs by state; Superseded: parked, but their work was planned again", "state")
        self.workers = per_policy("workers", "Workers that announced themselves")
        self.skewed_workers = per_policy("workers_of_other_version", "Workers of another version than the operator's")
        self.debt_may_wait = per_policy("debt_may_wait", "1 where the spec or a hold lets debt wait")
        self.pending_workers = per_policy("workers_pending", "Workers that cannot start yet, by reason", "reason")
        self.wait_age_seconds = per_policy("wait_age_seconds", "Age of the oldest wait, by reason", "reason")
        self.waiting = per_policy("waiting", "Jobs (and plans) that wait, by reason", "reason")
        self.granted_bytes_per_second = per_policy(
            "granted_bytes_per_second", "Bytes per second that the running jobs may read and write; 0 without a limit"
        )
        self.worker_share = per_policy("worker_share", "Workers that are the policy's share of --max-workers")
        self._per_policy = (
            self.debt_bytes,
            self.debt_sources,
            *self.measures.values(),
            self.debt_oldest_age_seconds,
            self.last_scan,
            self.scan_interval,
            self.targets,
            self.target_errors,
            self.quarantined,
            self.workers,
            self.skewed_workers,
            self.debt_may_wait,
            self.granted_bytes_per_second,
            self.cleanup_overdue_seconds,
            self.cleanup_problems,
            self.worker_share,
        )
        self.last_peak_bytes = per_policy(
            "last_attempt_peak_bytes",
            "Most memory of the attempt that ended last: of its driver, of a Python process of its tasks",
            "role",
        )
        self._scanned: set[CacheKey] = set()
        self._labelled: tuple[tuple[Gauge, dict[CacheKey, set[str]]], ...] = (
            (self.jobs, {}),
            (self.wait_age_seconds, {}),
            (self.waiting, {}),
            (self.debt_level_bytes, {}),
            (self.last_job_before, {}),
            (self.last_job_after, {}),
            (self.pending_workers, {}),
            (self.last_peak_bytes, {}),
        )

    def _of_scans(self, per_policy: Callable[..., Gauge]) -> None:
        """Register the metrics of what scans of a policy's store have found, and of the scans themselves."""
        self.debt_bytes = per_policy("debt_bytes", "Bytes a compaction now would reclaim, or merge")
        self.debt_level_bytes = per_policy("debt_level_bytes", "The same, by level", "level")
        self.debt_sources = per_policy(
            "debt_sources", "Sources (segments, blocks, tokens) a compaction now would rewrite or delete"
        )
        self.debt_oldest_age_seconds = per_policy("debt_oldest_age_seconds", "Age of the oldest debt")
        self.last_scan = per_policy(
            "last_scan_timestamp_seconds",
            "Time of the last good scan; before this coordinator's first one, since when it has tried",
        )
        self.scan_interval = per_policy("scan_interval_seconds", "Seconds between two scans, as trigger.interval says")
        self.targets = per_policy("targets", "Targets (logs, batches of blocks, branches) that the last scan found")
        self.target_errors = per_policy("target_errors", "Targets that could not be planned")
        self.measures = {
            measure.name: per_policy(measure.metric, measure.help) for kind in all_kinds() for measure in kind.measures
        }

    def _count_for_policies(self, registry: CollectorRegistry) -> None:
        """Register the counters of each policy: what only grows."""

        def counted(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"compaction_{name}", text, [*_POLICY, *labels], registry=registry)

        self.attempts = counted("job_attempts", "Ended attempts by outcome and reason", "outcome", "reason")
        self.unmeasured = counted("job_attempts_unmeasured", "Ended attempts that could not say what they used")
        self.cpu_seconds = counted("cpu_seconds", "CPU seconds of attempts: driver, executor", "role")
        self.bytes_read = counted("bytes_read", "Bytes of stores that attempts read, to prove their results as well")
        self.bytes_written = counted("bytes_written", "Bytes that attempts wrote to stores")
        self.fenced_commits = counted(
            "fenced_commits", "Attempts whose commit the store refused: their token was outdated"
        )
        self.cleanup_bytes = counted("cleanup_bytes", "Bytes of replaced data deleted after its grace")
        self.bytes_reclaimed = counted("bytes_reclaimed", "Bytes reclaimed by finished jobs")
        self.bytes_rewritten = counted("bytes_rewritten", "Bytes written by finished jobs")
        self.job_seconds = Histogram(
            "compaction_job_seconds",
            "From assignment to the accepted report",
            _POLICY,
            registry=registry,
            buckets=_WORK,
        )

    def _hold_age(self) -> float:
        """Of the wall clock, as the Lease of the hold has its time from that of who created it."""
        since = self.held_since
        # One second at least: a hold is told from none also where the two clocks differ.
        return max(1.0, (datetime.now(UTC) - since).total_seconds()) if since is not None else 0.0

    def observe_call(self, call: ApiCall) -> None:
        """Hook for `ApiClient(observe=...)`."""
        self.requests.labels(call.verb, call.resource, call.code).inc()
        if call.verb != "watch":
            self.request_seconds.labels(call.verb).observe(call.seconds)

    def watched(self, kind: str) -> None:
        """An event of a watched kind has just arrived."""
        self._watch_ages.last[kind] = self._clock()

    def watch_age(self) -> float | None:
        """Seconds since any kind's last event; None before the first."""
        moments = self._watch_ages.last.values()
        return self._clock() - max(moments) if moments else None

    def set_jobs(self, policy: CacheKey, by_state: Mapping[str, int]) -> None:
        """Replace a policy's job counts; states no longer present go to zero."""
        self._replace(0, policy, {state: float(count) for state, count in by_state.items()})

    def set_last_scan(self, policy: CacheKey, at: float | None, *, now: float) -> None:
        """Set the time of a policy's last good scan, None while this coordinator has made none (epoch seconds)."""
        if at is not None or policy not in self._scanned:
            self._scanned.add(policy)
            self.last_scan.labels(*policy).set(now if at is None else at)

    def set_waits(self, policy: CacheKey, by_reason: Mapping[str, float]) -> None:
        """Replace a policy's wait ages (seconds); reasons no longer present go to zero."""
        self._replace(1, policy, by_reason)

    def set_waiting(self, policy: CacheKey, by_reason: Mapping[str, int]) -> None:
        """Replace a policy's counts of what waits; reasons no longer present go to zero."""
        self._replace(2, policy, {reason: float(count) for reason, count in by_reason.items()})

    def set_level_debt(self, policy: CacheKey, by_level: Mapping[str, int]) -> None:
        """Replace a policy's debt by level (bytes); levels no longer present go to zero."""
        self._replace(3, policy, {level: float(size) for level, size in by_level.items()})

    def set_last_job(self, policy: CacheKey, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Replace what a policy's last job changed, by measure; measures no longer present go to zero."""
        self._replace(4, policy, before)
        self._replace(5, policy, after)

    def set_pending_workers(self, policy: CacheKey, by_reason: Mapping[str, int]) -> None:
        """Replace a policy's counts of workers that cannot begin yet; reasons no longer present go to zero."""
        self._replace(6, policy, {reason: float(count) for reason, count in by_reason.items()})

    def set_last_peaks(self, policy: CacheKey, by_role: Mapping[str, int]) -> None:
        """Replace the peaks of memory (bytes) of a policy's attempt that ended last; what it could not say goes."""
        gauge, known = self._labelled[7]
        roles = known.setdefault(policy, set())
        for role in roles - set(by_role):
            _drop(gauge, policy, role)
        roles.clear()
        self._replace(7, policy, by_role)

    def _replace(self, which: int, policy: CacheKey, values: Mapping[str, float]) -> None:
        gauge, known = self._labelled[which]
        labels = known.setdefault(policy, set())
        labels.update(values)
        for label in labels:
            gauge.labels(policy.namespace, policy.name, label).set(values.get(label, 0.0))

    def forget_policy(self, policy: CacheKey) -> None:
        """Drop the gauges of a deleted policy; counters stay, as rates need them."""
        self.conditions.forget(policy)
        self._scanned.discard(policy)
        for gauge in self._per_policy:
            _drop(gauge, policy)
        for gauge, known in self._labelled:
            for label in known.pop(policy, ()):
                _drop(gauge, policy, label)


def _last_job_gauges(registry: CollectorRegistry) -> tuple[Gauge, Gauge]:
    """Return the gauges of what the job that succeeded last changed, by measure: before it, and after it."""
    labels = [*_POLICY, "measure"]
    before, after = "Measure of the target before the job that succeeded last", "The same after it"
    return (
        Gauge("compaction_last_job_measure_before", before, labels, registry=registry),
        Gauge("compaction_last_job_measure_after", after, labels, registry=registry),
    )


def _drop(gauge: Gauge, policy: CacheKey, *more: str) -> None:
    gauge.labels(policy.namespace, policy.name, *more)  # `remove` insists that the series exists
    gauge.remove(policy.namespace, policy.name, *more)
