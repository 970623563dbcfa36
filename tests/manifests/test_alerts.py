"""Each alert fires by its cause, in time, with a readable text; and none of them while all is well."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client import Metric

from compaction.api.conditions import Conditions
from compaction.api.enums import AttemptOutcome, JobReason, JobState, PolicyReason, WaitReason, WorkerTrouble
from compaction.api.names import COORDINATOR_LEASE
from compaction.api.policy.store import conditions_for
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.measure import SUPERSEDED
from compaction.kube.metrics.registry import Metrics
from manifests.catalog_alerts import (
    ALONE,
    CATALOG_CASES,
    QUIET,
    Case,
    Cause,
    Moment,
    Promtool,
    Timeline,
    healthy_catalog,
)
from support.cluster.control_plane import MANIFESTS, ROOT

RULES = MANIFESTS / "components" / "prometheus" / "rules.yaml"
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
POLICY = CacheKey("storage", "logs")
SUBJECT = (("namespace", POLICY.namespace), ("policy", POLICY.name))
GIB = 1 << 30


def standing(reason: PolicyReason) -> Conditions:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return conditions_for((), reason=reason, message="the particulars", observed_generation=1, now=now)


def healthy(metrics: Metrics, minute: int) -> None:
    """A replica that leads and keeps up: a little debt that comes and goes, a worker that starts now and then."""
    metrics.leader.labels(COORDINATOR_LEASE).set(1)
    metrics.debt_bytes.labels(*POLICY).set((2 + minute % 7) * GIB)
    metrics.debt_oldest_age_seconds.labels(*POLICY).set(60 * (minute % 7))
    metrics.set_jobs(
        POLICY, {JobState.IN_PROGRESS: 2, JobState.SUCCEEDED: minute, JobState.FAULTY: 0, SUPERSEDED: minute // 60}
    )
    # A plan waits for approval: somebody has to act, at leisure.
    metrics.conditions.set(POLICY, standing(PolicyReason.APPROVAL_PENDING if minute > 60 else PolicyReason.COMPACTING))
    metrics.quarantined.labels(*POLICY).set(0)
    metrics.target_errors.labels(*POLICY).set(0)
    metrics.set_waiting(POLICY, {WaitReason.WORKER_STARTING: 1} if minute % 10 == 0 else {})
    metrics.attempts.labels(*POLICY, AttemptOutcome.SUCCEEDED, JobReason.COMPLETED).inc()
    # A node was taken away: one lease expired. That alone is what leases are for.
    metrics.attempts.labels(*POLICY, AttemptOutcome.EXPIRED, JobReason.LEASE_EXPIRED).inc(minute == 30)
    metrics.fenced_commits.labels(*POLICY)
    metrics.cleanup_overdue_seconds.labels(*POLICY).set(minute % 3)
    metrics.cleanup_problems.labels(*POLICY).set(0)
    metrics.skewed_workers.labels(*POLICY).set(1 if minute < 20 else 0)
    metrics.debt_may_wait.labels(*POLICY).set(0)
    metrics.set_pending_workers(POLICY, {WorkerTrouble.QUEUED: 0})
    metrics.set_waits(POLICY, {WaitReason.APPROVAL_PENDING: 60.0 * (minute % 600)})
    metrics.scan_interval.labels(*POLICY).set(60)
    metrics.set_last_scan(POLICY, 60.0 * (minute - minute % 10), now=0)
    healthy_catalog(metrics, minute)


def debt_grows(metrics: Metrics, minute: int) -> None:
    metrics.debt_bytes.labels(*POLICY).set(2 * GIB + minute * GIB // 60)


def debt_too_old(metrics: Metrics, minute: int) -> None:
    metrics.debt_oldest_age_seconds.labels(*POLICY).set(86400 + 60 * (minute - 10))


def debt_that_may_wait(metrics: Metrics, minute: int) -> None:
    """Suspended, Manual, with a schedule or windows; and the hours in which what has waited is compacted."""
    debt_too_old(metrics, minute)
    metrics.debt_may_wait.labels(*POLICY).set(1 if minute < 30 else 0)


def nobody_approves(metrics: Metrics, minute: int) -> None:
    metrics.set_waits(POLICY, {WaitReason.APPROVAL_PENDING: 86400 + 60 * (minute - 10)})


def debt_is_late(metrics: Metrics, minute: int) -> None:
    """From minute 200 on, of one policy of two."""
    metrics.debt_oldest_age_seconds.labels(*POLICY).set(21600 + 60 * max(0, minute - 199))
    metrics.debt_oldest_age_seconds.labels(POLICY.namespace, "others").set(0)


def debt_is_late_for_a_while(metrics: Metrics, minute: int) -> None:
    """A little: two minutes of the first hundred and two are more than one in a hundred."""
    metrics.debt_oldest_age_seconds.labels(*POLICY).set(21600 + 60 * (100 <= minute < 104))


def late_debt_that_may_wait(metrics: Metrics, minute: int) -> None:
    debt_is_late(metrics, minute)
    metrics.debt_may_wait.labels(*POLICY).set(1 if minute < 150 else 0)


def scans_stop(metrics: Metrics, minute: int) -> None:
    """The last good one is of minute 150; it counts as fresh for three minutes and ten."""
    metrics.scan_interval.labels(*POLICY).set(60)
    metrics.set_last_scan(POLICY, 60.0 * min(minute, 150), now=0)


def store_not_seen(metrics: Metrics, minute: int) -> None:
    """From another cause to the next: the alert does not begin anew with each."""
    if minute >= 10:
        reason = PolicyReason.STORE_UNREACHABLE if minute % 2 else PolicyReason.PERMISSION_DENIED
        metrics.conditions.set(POLICY, standing(reason))


def sources_quarantined(metrics: Metrics, minute: int) -> None:
    metrics.quarantined.labels(*POLICY).set(2 if minute >= 10 else 0)
    metrics.conditions.set(
        POLICY, standing(PolicyReason.SOURCES_QUARANTINED if minute >= 10 else PolicyReason.COMPACTING)
    )


def targets_unreadable(metrics: Metrics, minute: int) -> None:
    metrics.target_errors.labels(*POLICY).set(3 if minute >= 10 else 0)
    metrics.conditions.set(
        POLICY, standing(PolicyReason.SOURCES_UNREADABLE if minute >= 10 else PolicyReason.COMPACTING)
    )


def job_faulty(metrics: Metrics, minute: int) -> None:
    metrics.set_jobs(POLICY, {JobState.FAULTY: 2 if minute >= 10 else 0})


def workers_cannot_start(metrics: Metrics, minute: int) -> None:
    in_turn = [reason for reason in WaitReason if reason.name.startswith("WORKER")]
    assert len(in_turn) == 3
    metrics.set_waiting(POLICY, {in_turn[minute % 3]: 3} if minute >= 10 else {})


def queue_admits_later(metrics: Metrics, minute: int) -> None:
    workers_cannot_start(metrics, minute)
    metrics.set_pending_workers(POLICY, {WorkerTrouble.QUEUED: 1 if minute >= 10 else 0})


def image_not_upgraded(metrics: Metrics, minute: int) -> None:
    metrics.skewed_workers.labels(*POLICY).set(2 if minute >= 10 else 0)


def commit_refused(metrics: Metrics, minute: int) -> None:
    metrics.fenced_commits.labels(*POLICY).inc(minute == 11)


def leases_lost(metrics: Metrics, minute: int) -> None:
    metrics.attempts.labels(*POLICY, AttemptOutcome.EXPIRED, JobReason.LEASE_EXPIRED).inc(minute in {4, 7, 9, 11})


def cleanup_overdue(metrics: Metrics, minute: int) -> None:
    metrics.cleanup_overdue_seconds.labels(*POLICY).set(max(0, minute - 10) * 60)


def cleanup_refused(metrics: Metrics, minute: int) -> None:
    metrics.cleanup_problems.labels(*POLICY).set(1 if minute >= 10 else 0)


def on_hold(metrics: Metrics, minute: int) -> None:
    metrics.held_since = datetime.now(UTC) - timedelta(days=1, minutes=minute - 10)


def sink_away(metrics: Metrics, minute: int) -> None:
    metrics.sink_oldest.set(60 * max(0, minute - 10))


def sink_refuses(metrics: Metrics, minute: int) -> None:
    metrics.sink_refused.inc(minute == 10)


def receipts_are_lost(metrics: Metrics, minute: int) -> None:
    metrics.sink_bare.inc(minute == 10)


def too_many_events(metrics: Metrics, minute: int) -> None:
    metrics.sink_lost.inc(minute == 10)


def nobody_leads(metrics: Metrics, minute: int) -> None:
    metrics.leader.labels(COORDINATOR_LEASE).set(1 if minute < 10 else 0)


def nobody_answers(metrics: Metrics, minute: int) -> None:
    """No replica is there to be scraped."""


NO_LEADER = "No replica of the compaction operator leads"
INSTALLATION = (("name", COORDINATOR_LEASE), ("namespace", "compaction-system"))
HERE = "No replica of the compaction operator in namespace compaction-system leads"
FAST: Final = "is gone in days"


def burning(slo: str, share: str, lasts: str) -> str:
    return f"Objective {slo} of compaction is missed by {share} of the policies: its budget of 30 days {lasts}"


def of(slo: str) -> tuple[tuple[str, str], ...]:
    return (("slo", slo),)


CASES = [
    Case(
        "CompactionDebtGrows", debt_grows, 148, 151, "storage/logs falls behind: 4.517GiB of debt, and growing", SUBJECT
    ),
    Case("CompactionDebtTooOld", debt_too_old, 25, 26, "storage/logs: debt has been waiting for 1d 0h 16m 0s", SUBJECT),
    Case(
        "CompactionPolicyStalled",
        store_not_seen,
        19,
        20,
        "storage/logs cannot go on: its condition Stalled is True",
        SUBJECT,
    ),
    Case(
        "CompactionSourcesQuarantined",
        sources_quarantined,
        14,
        15,
        "storage/logs: 2 damaged sources are quarantined",
        SUBJECT,
    ),
    Case("CompactionTargetErrors", targets_unreadable, 24, 25, "storage/logs: 3 targets cannot be planned", SUBJECT),
    Case("CompactionJobFaulty", job_faulty, 14, 15, "storage/logs: 2 jobs gave up", SUBJECT),
    Case(
        "CompactionWorkersCannotStart",
        workers_cannot_start,
        24,
        25,
        "storage/logs: 3 jobs wait, and no worker comes up",
        SUBJECT,
    ),
    Case(
        "CompactionVersionSkew",
        image_not_upgraded,
        69,
        70,
        "storage/logs: 2 workers are of another version than the operator",
        SUBJECT,
    ),
    Case("CompactionFencing", commit_refused, 10, 11, "storage/logs: workers lose their leases", SUBJECT),
    Case("CompactionFencing", leases_lost, 8, 12, "storage/logs: workers lose their leases", SUBJECT),
    Case("CompactionCleanupBehind", cleanup_overdue, 100, 101, "storage/logs: replaced data is not deleted", SUBJECT),
    Case("CompactionCleanupBehind", cleanup_refused, 39, 40, "storage/logs: replaced data is not deleted", SUBJECT),
    Case(
        "CompactionOnHold",
        on_hold,
        14,
        16,
        "The compaction operator in namespace compaction-system has been on hold for 1d 0h 6m 0s",
        (("namespace", "compaction-system"),),
    ),
    Case(
        "CompactionEventsUndelivered",
        sink_away,
        30,
        31,
        "CloudEvents of the compaction operator in namespace compaction-system have waited for 21m 0s",
        (("namespace", "compaction-system"),),
    ),
    *[
        Case(
            "CompactionEventsLost",
            cause,
            9,
            11,
            "CloudEvents of the compaction operator in namespace compaction-system were lost",
            (("namespace", "compaction-system"),),
        )
        for cause in (sink_refuses, receipts_are_lost, too_many_events)
    ],
    Case(
        "CompactionNoLeader",
        nobody_leads,
        11,
        12,
        HERE,
        INSTALLATION,
    ),
    Case("CompactionNoLeader", nobody_answers, 1, 2, NO_LEADER, (("name", COORDINATOR_LEASE),)),
    Case(
        "CompactionApprovalWaits",
        nobody_approves,
        25,
        26,
        "storage/logs: a plan has waited 1d 0h 16m 0s for approval",
        SUBJECT,
    ),
    Case("CompactionBudgetBurnsFast", debt_is_late, 216, 217, burning("debt-age", "15%", FAST), of("debt-age")),
    Case(
        "CompactionBudgetBurnsFast", scans_stop, 171, 172, burning("scan-freshness", "15%", FAST), of("scan-freshness")
    ),
    Case(
        "CompactionBudgetBurnsSlowly",
        debt_is_late_for_a_while,
        100,
        101,
        burning("debt-age", "1.961%", "does not last"),
        of("debt-age"),
    ),
    *CATALOG_CASES,
]


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory, promtool_program: Path) -> Promtool:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return Promtool(promtool_program, groups, tmp_path_factory.mktemp("promtool"))


def expected(promtool: Promtool, case: Case) -> dict[str, Any]:
    rule = promtool.rules()[case.alert]
    return {
        "exp_labels": {**rule["labels"], **dict(case.subject)},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }


def test_promtool_finds_nothing_wrong(promtool: Promtool) -> None:
    assert "SUCCESS" in promtool.check()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.cause.__name__}")
def test_an_alert_fires_by_its_cause_and_not_before_its_time(promtool: Promtool, case: Case) -> None:
    timeline = Timeline.of(case.cause, minutes=case.firing + 2)
    promtool.judge(
        timeline,
        Moment(case.alert, at=case.quiet),
        Moment(case.alert, at=case.firing, firing=(expected(promtool, case),)),
    )


@pytest.mark.parametrize(
    ("alert", "cause"),
    [
        ("CompactionDebtTooOld", debt_that_may_wait),
        ("CompactionWorkersCannotStart", queue_admits_later),
        ("CompactionBudgetBurnsFast", late_debt_that_may_wait),
    ],
    ids=lambda item: item if isinstance(item, str) else item.__name__,
)
def test_what_the_spec_or_a_queue_lets_wait_fires_nothing(promtool: Promtool, alert: str, cause: Cause) -> None:
    minutes = 250 if cause is late_debt_that_may_wait else 300
    promtool.judge(Timeline.of(cause, minutes=minutes), Moment(alert, at=minutes - 2))


def test_an_alert_about_a_budget_ends_soon_after_its_cause(promtool: Promtool) -> None:
    """The long window still remembers it; the short one does not."""

    def repaired(metrics: Metrics, minute: int) -> None:
        debt_is_late(metrics, minute if minute < 220 else 0)

    timeline = Timeline.of(repaired, minutes=260)
    case = next(case for case in CASES if case.cause is debt_is_late)
    rule = promtool.rules()[case.alert]
    summary = burning("debt-age", "16.67%", FAST)
    firing = {
        "exp_labels": {**rule["labels"], **dict(case.subject)},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }
    promtool.judge(timeline, Moment(case.alert, at=219, firing=(firing,)), Moment(case.alert, at=255))


def test_one_of_several_installations_that_vanishes_is_named(promtool: Promtool) -> None:
    """The other one leads as before; no sample comes from the first one any more."""
    timeline = Timeline(40)
    for namespace, minutes in (("compaction-system", 20), ("team-b", 40)):
        key = (("name", COORDINATOR_LEASE), ("namespace", namespace), ("pod", "compaction-operator-0"))
        timeline.series["leader_election_master_status", key] = [1.0] * minutes
    case = Case("CompactionNoLeader", nobody_answers, 19, 30, HERE, INSTALLATION)
    promtool.judge(
        timeline,
        Moment(case.alert, at=case.quiet),
        Moment(case.alert, at=case.firing, firing=(expected(promtool, case),)),
    )


def test_nothing_fires_while_all_is_well(promtool: Promtool) -> None:
    timeline = Timeline.of(healthy, minutes=300)
    promtool.judge(timeline, *(Moment(alert, at=minute) for alert in promtool.rules() for minute in (45, 299)))


@pytest.mark.parametrize("cause", [sources_quarantined, targets_unreadable], ids=lambda cause: cause.__name__)
def test_a_cause_with_an_alert_of_its_own_fires_that_one_only(promtool: Promtool, cause: Cause) -> None:
    promtool.judge(Timeline.of(cause, minutes=60), Moment("CompactionPolicyStalled", at=58))


@pytest.mark.parametrize("cause", ALONE, ids=lambda cause: cause.__name__)
def test_a_cause_of_catalogs_with_an_alert_of_its_own_fires_that_one_only(promtool: Promtool, cause: Cause) -> None:
    promtool.judge(Timeline.of(cause, minutes=60), Moment("CompactionCatalogStalled", at=58))


@pytest.mark.parametrize("cause", QUIET, ids=lambda cause: cause.__name__)
def test_a_catalog_that_needs_no_user_fires_nothing(promtool: Promtool, cause: Cause) -> None:
    timeline = Timeline.of(cause, minutes=300)
    alerts = [alert for alert in promtool.rules() if alert.startswith("CompactionCatalog")]
    assert alerts
    promtool.judge(timeline, *(Moment(alert, at=299) for alert in alerts))


def test_every_alert_has_a_case_and_a_runbook(promtool: Promtool) -> None:
    rules = promtool.rules()
    assert set(rules) == {case.alert for case in CASES}
    for alert, rule in rules.items():
        base, _, page = rule["annotations"]["runbook_url"].rpartition("/runbooks/")
        assert base == f"{REPOSITORY}/blob/main/docs", "a URL that a browser opens"
        runbook = ROOT / "docs" / "runbooks" / page
        assert runbook.name == f"{alert}.md"
        text = runbook.read_text()
        assert text.startswith(f"# {alert}\n")
        for part in ("## What it means", "## Look", "## Do"):
            assert part in text, f"{runbook.name}: {part}"
    assert {path.stem for path in (ROOT / "docs" / "runbooks").glob("Compaction*.md")} == set(rules)


def test_the_rules_ask_only_for_what_is_exported(promtool: Promtool) -> None:
    metrics = Metrics()
    healthy(metrics, 0)
    exported = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    for group in promtool.groups:
        for rule in group["rules"]:
            words = {word for word in WORD.findall(rule["expr"]) if ":" in word or word.startswith(OURS)}
            assert words, rule
            assert words <= exported | promtool.recorded()


def test_the_rules_are_part_of_the_component() -> None:
    assert Path(RULES).name in (RULES.parent / "kustomization.yaml").read_text()


# The dashboard asks for what is exported, in PromQL that parses.

WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
OURS = ("compaction_", "workqueue_", "rest_client_", "leader_election_")
#: What a family's samples are called, by its type.
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}


ALERTS: Final = "ALERTS"
"""Prometheus' own series of alerts."""
COLUMNS: Final = 24
"""Of Grafana's grid."""


def dashboard() -> dict[str, Any]:
    """The file, as Grafana loads it."""
    found: dict[str, Any] = json.loads((ROOT / "manifests/components/grafana/dashboard.json").read_text())
    return found


def queries() -> list[str]:
    """Every query of every panel, and of the annotations."""
    annotations = [item["expr"] for item in dashboard()["annotations"]["list"]]
    return annotations + [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def recorded() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def links(part: Any) -> list[str]:
    """Every URL in a part of the dashboard, however deep it lies."""
    if isinstance(part, list):
        return [url for item in part for url in links(item)]
    if isinstance(part, dict):
        own = [part["url"]] if "url" in part else []
        return own + [url for item in part.values() for url in links(item)]
    return []


def exported() -> set[str]:
    families: list[Metric] = list(Metrics().registry.collect())
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


@pytest.mark.parametrize("query", queries())
def test_a_query_names_metrics_that_are_exported(query: str) -> None:
    named = {word for word in WORD.findall(query) if ":" in word or word.startswith(OURS) or word == ALERTS}
    assert named
    assert named <= exported() | recorded() | {ALERTS}


def test_each_alert_has_a_panel_that_leads_to_its_runbook(promtool: Promtool) -> None:
    found = {
        Path(url).stem for panel in dashboard()["panels"] for url in links(panel.get("links")) if "runbooks" in url
    }
    assert found == set(promtool.rules())


def test_links_lead_to_pages_of_the_repository_or_to_the_console() -> None:
    pages = [url for url in links(dashboard()) if not url.startswith("${console}/")]
    for url in pages:
        base, _, page = url.partition("/docs/")
        path, _, anchor = page.partition("#")
        assert base == f"{REPOSITORY}/blob/main"
        text = (ROOT / "docs" / path).read_text()
        assert not anchor or any(title_anchor(line) == anchor for line in text.splitlines()), url
    console = {url for url in links(dashboard()) if url not in pages}
    place = "${console}/policy/"
    assert console == {
        "${console}/",
        place + "${__data.fields.Namespace}/${__data.fields.Policy}",
        place + "${__field.labels.namespace}/${__field.labels.policy}",
    }
    (variable,) = [item for item in dashboard()["templating"]["list"] if item["name"] == "console"]
    assert variable["query"] == "http://127.0.0.1:8089"


def title_anchor(line: str) -> str:
    return line.lstrip("# ").lower().replace(" ", "-") if line.startswith("#") else ""


def test_a_table_names_its_columns_as_its_queries_do() -> None:
    """A value of a query that is not there would be a column of the name Value #X, or none."""
    tables = [panel for panel in dashboard()["panels"] if panel["type"] == "table"]
    assert [table["title"] for table in tables] == ["Policies", "Catalogs"]
    for table in tables:
        values = {f"Value #{target['refId']}" for target in table["targets"]}
        (organized,) = [item["options"] for item in table["transformations"] if item["id"] == "organize"]
        hidden = {name for name in organized["excludeByName"] if name.startswith("Value")}
        assert {name for name in organized["renameByName"] if name.startswith("Value")} | hidden == values
        titles = set(organized["renameByName"].values())
        assert {override["matcher"]["options"] for override in table["fieldConfig"]["overrides"]} <= titles


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
