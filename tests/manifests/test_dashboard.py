"""The dashboard asks for what is exported, in PromQL that parses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import Metric

from compaction.kube.metrics.registry import Metrics
from manifests.promrules import Promtool
from support.cluster.rendered import ROOT

WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
OURS = ("compaction_", "workqueue_", "rest_client_", "leader_election_")
#: What a family's samples are called, by its type.
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}


COLUMNS: Final = 24
"""Of Grafana's grid."""


def dashboard() -> dict[str, Any]:
    """The file, as Grafana loads it."""
    found: dict[str, Any] = json.loads((ROOT / "manifests/components/grafana/dashboard.json").read_text())
    return found


def queries() -> list[str]:
    """Every query of every panel."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def exported() -> set[str]:
    families: list[Metric] = list(Metrics().registry.collect())
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


@pytest.mark.parametrize("query", queries())
def test_a_query_names_metrics_that_are_exported(query: str) -> None:
    named = {word for word in WORD.findall(query) if word.startswith(OURS)}
    assert named
    assert named <= exported()


def test_what_is_exported_is_shown() -> None:
    shown = {word for query in queries() for word in WORD.findall(query)}
    families = {family.name for family in Metrics().registry.collect()}
    hidden = {name for name in families if not any(word.startswith(name) for word in shown)}
    assert hidden == {
        "compaction_build",
        "compaction_cache_repairs",
        "compaction_events_dropped",
        "compaction_watch_last_event_age_seconds",
        "workqueue_adds",
        "workqueue_retries",
    }, "counters for the curious; everything else has a panel"


def test_the_queries_are_promql(tmp_path: Path, promtool_program: Path) -> None:
    rules = [{"record": f"query:number_{number}", "expr": _filled_in(query)} for number, query in enumerate(queries())]
    promtool = Promtool(promtool_program, [{"name": "queries", "rules": rules}], tmp_path)
    assert f"{len(rules)} rules found" in promtool.check()


def _filled_in(query: str) -> str:
    for variable, value in (("$__rate_interval", "5m"), ("$namespace", ".*"), ("$policy", ".*"), ("$catalog", ".*")):
        query = query.replace(variable, value)
    return query


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= COLUMNS
        assert not cells & taken
        taken |= cells
