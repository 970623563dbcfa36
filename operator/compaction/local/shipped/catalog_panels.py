"""Panels about catalogs."""

from __future__ import annotations

from typing import Final

from compaction.local.shipped.panel import Panel

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
