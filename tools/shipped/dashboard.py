"""The Grafana dashboard, from a table of panels; it is kept in manifests/components/grafana."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from compaction.registry import all_kinds

# A panel of the dashboard.


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: what it is called, what it asks (query -> legend), and in which unit the answer is."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    help: str = ""


# Panels about catalogs.

OF_CATALOG: Final = 'namespace=~"$namespace", catalog=~"$catalog"'
BY_CATALOG: Final = "{{namespace}}/{{catalog}}"


def of_catalog(metric: str, *by: str, labels: str = "") -> str:
    """As `latest`, of catalogs; `labels` narrows it further."""
    narrowed = f"{OF_CATALOG}, {labels}" if labels else OF_CATALOG
    return f"max by ({', '.join(('namespace', 'catalog', *by))}) (compaction_catalog_{metric}{{{narrowed}}})"


def age(metric: str, *by: str, labels: str = "") -> str:
    """Seconds since a timestamp of catalogs."""
    return f"time() - {of_catalog(metric, *by, labels=labels)}"


def catalog_rate(metric: str, *by: str) -> str:
    labels = ", ".join(("namespace", "catalog", *by))
    return f"sum by ({labels}) (rate(compaction_catalog_{metric}{{{OF_CATALOG}}}[$__rate_interval]))"


CATALOGS: Final = (
    Panel(
        "Versions of the history, and what is behind",
        {of_catalog("versions"): f"{BY_CATALOG} kept", of_catalog("behind_versions"): f"{BY_CATALOG} behind"},
        help="Behind: versions beyond the two that always stay.",
    ),
    Panel(
        "Earliest and latest version",
        {
            of_catalog("earliest_version"): f"{BY_CATALOG} earliest",
            of_catalog("latest_version"): f"{BY_CATALOG} latest",
        },
    ),
    Panel(
        "Age of the required time, by what pins it",
        {
            age("required_timestamp_seconds", "reason", "participant"): (
                f"{BY_CATALOG} {{{{reason}}}} {{{{participant}}}}"
            ),
            age("low_watermark_timestamp_seconds"): f"{BY_CATALOG} low watermark",
            age("propagated_timestamp_seconds"): f"{BY_CATALOG} propagated minimum",
        },
        "s",
        "The catalog is needed from then on. Without a pin it is as old as the watermark.",
    ),
    Panel(
        "For how long a participant has pinned the history",
        {age("pinned_since_timestamp_seconds", "reason", "participant"): "{{catalog}} {{reason}} {{participant}}"},
        "s",
    ),
    Panel(
        "Participants",
        {of_catalog("participants", "answer"): f"{BY_CATALOG} {{{{answer}}}}"},
        help="Silent: asked in the last round, without an answer.",
    ),
    Panel(
        "How the last round ended",
        {of_catalog("last_outcome", "process", "reason"): "{{catalog}} {{process}} {{reason}}"},
        help="1 for the reason of each of the two processes.",
    ),
    Panel(
        "Catalogs that need action",
        {
            of_catalog("condition", labels='condition="Ready", status="False"'): f"{BY_CATALOG} asks",
            of_catalog("condition", labels='condition="Stalled", status="True"'): f"{BY_CATALOG} stalled",
            of_catalog("reason", "reason"): f"{BY_CATALOG} {{{{reason}}}}",
        },
    ),
    Panel(
        "Time since the last success",
        {
            age("last_end_timestamp_seconds", "process", "outcome", labels='outcome=~"Succeeded|Skipped"'): (
                "{{catalog}} {{process}} {{outcome}}"
            )
        },
        "s",
        "Skipped: there was nothing to do, or the history is pinned as it should be.",
    ),
    Panel(
        "Ends of the two processes",
        {catalog_rate("process_ends_total", "process", "outcome"): ("{{catalog}} {{process}} {{outcome}}")},
        "ops",
    ),
    Panel("Versions cut", {catalog_rate("versions_cut_total"): BY_CATALOG}, "ops"),
    Panel("Bytes cut", {catalog_rate("bytes_cut_total"): BY_CATALOG}, "Bps"),
    Panel(
        "Duration of a round",
        {
            "histogram_quantile(0.99, sum by (le, namespace, catalog) "
            f"(rate(compaction_catalog_round_seconds_bucket{{{OF_CATALOG}}}[$__rate_interval])))": f"{BY_CATALOG} 99 %"
        },
        "s",
    ),
    Panel(
        "Refused tokens",
        {f"sum by (namespace, catalog) (increase(compaction_catalog_fenced_total{{{OF_CATALOG}}}[1h]))": BY_CATALOG},
        help="The log has seen a larger fencing token.",
    ),
)


COLUMNS, WIDTH, HEIGHT = 24, 8, 8
OF_POLICY = 'namespace=~"$namespace", policy=~"$policy"'
BY_POLICY = "{{namespace}}/{{policy}}"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def latest(metric: str, *by: str) -> str:
    """Of the replica that leads: a former leader's series end with it, and never say more."""
    labels = ", ".join(("namespace", "policy", *by))
    return f"max by ({labels}) ({metric}{{{OF_POLICY}}})"


def standing(condition: str) -> str:
    return f"max by (namespace, policy) (compaction_policy_condition{{{OF_POLICY}, {condition}}})"


def rate(metric: str, *by: str) -> str:
    labels = ", ".join(("namespace", "policy", *by))
    return f"sum by ({labels}) (rate({metric}{{{OF_POLICY}}}[$__rate_interval]))"


def quantile(q: float, metric: str, *, of_policy: bool = False) -> str:
    labels, by = (f"{{{OF_POLICY}}}", "le, namespace, policy") if of_policy else ("", "le")
    return f"histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket{labels}[$__rate_interval])))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "What is behind": (
        Panel("Debt", {latest("compaction_debt_bytes"): BY_POLICY}, "bytes", "What a compaction now would reclaim."),
        Panel("Age of the oldest debt", {latest("compaction_debt_oldest_age_seconds"): BY_POLICY}, "s"),
        Panel("Policies whose debt may wait", {latest("compaction_debt_may_wait"): BY_POLICY}),
        Panel("Sources in debt", {latest("compaction_debt_sources"): BY_POLICY}),
        Panel("Debt by level", {latest("compaction_debt_level_bytes", "level"): "{{policy}} L{{level}}"}, "bytes"),
        *(
            Panel(one.title, {latest(f"compaction_{one.metric}"): BY_POLICY}, one.unit, f"{one.help}.")
            for kind in all_kinds()
            for one in kind.measures
        ),
    ),
    "Why": (
        Panel("Waiting", {latest("compaction_waiting", "reason"): f"{BY_POLICY} {{{{reason}}}}"}),
        Panel(
            "Age of the oldest wait", {latest("compaction_wait_age_seconds", "reason"): "{{policy}} {{reason}}"}, "s"
        ),
        Panel("Jobs", {latest("compaction_jobs", "state"): f"{BY_POLICY} {{{{state}}}}"}),
    ),
    "What is done about it": (
        Panel("Reclaimed", {rate("compaction_bytes_reclaimed_total"): BY_POLICY}, "Bps"),
        Panel(
            "What the last job changed",
            {
                latest("compaction_last_job_measure_before", "measure"): f"{BY_POLICY} {{{{measure}}}} before",
                latest("compaction_last_job_measure_after", "measure"): f"{BY_POLICY} {{{{measure}}}} after",
            },
            help="Measures of its target before and after it, such as the tombstones that a listing steps over.",
        ),
        Panel(
            "Written by rewrites, and what they may use",
            {
                rate("compaction_bytes_rewritten_total"): f"{BY_POLICY} written",
                latest("compaction_granted_bytes_per_second"): f"{BY_POLICY} granted",
            },
            "Bps",
        ),
        Panel(
            "Seconds of a job",
            {
                quantile(0.5, "compaction_job_seconds", of_policy=True): f"{BY_POLICY} median",
                quantile(0.99, "compaction_job_seconds", of_policy=True): f"{BY_POLICY} 99 %",
            },
            "s",
        ),
        Panel(
            "Attempts by outcome", {rate("compaction_job_attempts_total", "outcome"): "{{policy}} {{outcome}}"}, "ops"
        ),
        Panel("Workers", {latest("compaction_workers"): BY_POLICY}),
        Panel(
            "Workers held, and the share of the operator's limit",
            {
                "max(compaction_workers_held)": "all policies",
                latest("compaction_worker_share"): f"{BY_POLICY} share",
            },
        ),
        Panel(
            "Targets", {latest("compaction_targets"): BY_POLICY}, help="Logs, or batches of blocks, that a scan found."
        ),
    ),
    "What is wrong": (
        Panel(
            "Policies that need action",
            {
                standing('condition="Ready", status="False"'): f"{BY_POLICY} asks",
                standing('condition="Stalled", status="True"'): f"{BY_POLICY} stalled",
            },
            help="Ready is False: a user has to act. Stalled: nothing happens until then.",
        ),
        Panel("Reasons", {latest("compaction_policy_reason", "reason"): f"{BY_POLICY} {{{{reason}}}}"}),
        Panel(
            "Sources in quarantine, unreadable targets",
            {
                latest("compaction_quarantined_sources"): f"{BY_POLICY} quarantined",
                latest("compaction_target_errors"): f"{BY_POLICY} unreadable",
            },
        ),
        Panel(
            "Refused commits",
            {f"sum by (namespace, policy) (increase(compaction_fenced_commits_total{{{OF_POLICY}}}[1h]))": BY_POLICY},
            help="The store refused an outdated fencing token.",
        ),
        Panel(
            "Cleanup",
            {
                latest("compaction_cleanup_overdue_seconds"): f"{BY_POLICY} overdue",
            },
            "s",
            "For how long the oldest deletion has been due.",
        ),
        Panel("Deleted after the grace", {rate("compaction_cleanup_bytes_total"): BY_POLICY}, "Bps"),
        Panel(
            "Workers that cannot start yet",
            {latest("compaction_workers_pending", "reason"): f"{BY_POLICY} {{{{reason}}}}"},
        ),
        Panel("Workers of another version", {latest("compaction_workers_of_other_version"): BY_POLICY}),
        Panel("Targets that could not be swept", {latest("compaction_cleanup_problems"): BY_POLICY}),
    ),
    "Catalogs": CATALOGS,
    "The operator": (
        Panel("Leader", {"leader_election_master_status": "{{pod}}"}, help="1 for the replica that leads."),
        Panel(
            "Reconciliations",
            {"sum by (result) (rate(compaction_reconcile_total[$__rate_interval]))": "{{result}}"},
            "ops",
        ),
        Panel("Duration of a reconciliation, 99 %", {quantile(0.99, "compaction_reconcile_seconds"): "99 %"}, "s"),
        Panel("Limits over all policies", {"max by (limit) (compaction_operator_limit)": "{{limit}}"}),
        Panel("Queue", {"sum(workqueue_depth)": "waiting", "sum(workqueue_running)": "running"}),
        Panel("Wait in the queue, 99 %", {quantile(0.99, "workqueue_queue_duration_seconds"): "99 %"}, "s"),
        Panel(
            "API requests", {"sum by (code) (rate(rest_client_requests_total[$__rate_interval]))": "{{code}}"}, "reqps"
        ),
        Panel("API latency, 99 %", {quantile(0.99, "rest_client_request_duration_seconds"): "99 %"}, "s"),
        Panel(
            "Renewals of the leader's Lease, 99 %",
            {
                quantile(0.99, "compaction_lease_renew_seconds"): "answered after",
                quantile(0.99, "compaction_lease_renew_delay_seconds"): "sent late by",
            },
            "s",
        ),
        Panel("Event loop lag", {"max(compaction_event_loop_lag_seconds)": "lag"}, "s"),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, members in ROWS.items():
        panels.append({"type": "row", "title": row, "collapsed": False, "panels": [], **_place(0, y, COLUMNS, 1)})
        y += 1
        for number, panel in enumerate(members):
            x, line = number * WIDTH % COLUMNS, number * WIDTH // COLUMNS
            panels.append(_graph(panel, _place(x, y + line * HEIGHT, WIDTH, HEIGHT)))
        y += -(-len(members) * WIDTH // COLUMNS) * HEIGHT
    for number, found in enumerate(panels, start=1):
        found["id"] = number
    return {
        "uid": "compaction",
        "title": "Compaction",
        "tags": ["compaction"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                _datasource(),
                _variable("namespace", '{__name__=~"compaction_debt_bytes|compaction_catalog_versions"}'),
                _variable("policy", 'compaction_debt_bytes{namespace=~"$namespace"}'),
                _variable("catalog", 'compaction_catalog_versions{namespace=~"$namespace"}'),
            ]
        },
        "panels": panels,
    }


def queries() -> list[str]:
    """Every query of the dashboard, those of its variables included."""
    asked = [query for members in ROWS.values() for panel in members for query in panel.queries]
    return [*asked, "compaction_debt_bytes", "compaction_catalog_versions"]


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _place(x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _graph(panel: Panel, place: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": DATASOURCE}
            for number, (query, legend) in enumerate(panel.queries.items())
        ],
        **place,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(label: str, series: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": f"label_values({series}, {label})",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }
