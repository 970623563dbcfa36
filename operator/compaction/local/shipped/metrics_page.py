"""The table in docs/metrics.md of what /metrics exports, made from the metrics themselves."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric

from compaction.kube.metrics.registry import Metrics
from compaction.local.errors import ShippedFilesError

BEGIN, END = "<!-- metrics -->\n", "<!-- end -->\n"
_ENDINGS = {"counter": "_total", "info": "_info"}


def table() -> str:
    """A row for each family: its name as queries know it, type, labels, and what it says of itself."""
    metrics = Metrics()
    metrics.watched("CompactionPolicy")
    rows = []
    for family, labels in sorted(_families(metrics), key=lambda one: one[0].name):
        name = family.name + _ENDINGS.get(family.type, "")
        rows.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def page(text: str) -> str:
    """The page's text with its table up to date. Raises ShippedFilesError without the marks around the table."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ShippedFilesError(f"the page of metrics has no place for its table: {BEGIN.strip()} ... {END.strip()}")
    return f"{head}{BEGIN}{table()}{END}{tail}"


def _families(metrics: Metrics) -> Iterable[tuple[Metric, tuple[str, ...]]]:
    """Each family with the labels it is declared with; prometheus-client knows them by the collector."""
    for collector in metrics.registry._collector_to_names:
        for family in collector.collect():
            yield family, tuple(getattr(collector, "_labelnames", ()) or _labels_of(family))


def _labels_of(family: Metric) -> tuple[str, ...]:
    names = {name for sample in family.samples for name in sample.labels}
    return tuple(sorted(names - {"le"}))
