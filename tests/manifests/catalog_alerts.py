"""What fires the alerts of catalogs: series as the metrics of a coordinator have them, minute by minute."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compaction.api.catalog.catalog import CatalogCompactionStatus, HybridTime, RequiredTime, standing_of
from compaction.api.catalog.reasons import Ended, Finding, Process, Reason
from compaction.api.policy.store import conditions_for
from compaction.catalogs.compaction.observations import CatalogDecision, CatalogMemory
from compaction.kube.informer.cache import CatalogKey
from compaction.kube.metrics.registry import Metrics

# Alerts tried by promtool on series that the operator's own metrics made, minute by minute.

#: What a scrape adds to everything: two replicas that differ in their pod.
TARGET = {"namespace": "compaction-system", "pod": "compaction-operator-0"}

Cause = Callable[[Metrics, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """An alert, what brings it about, the last minute without it, the first with it, what it says, and its labels."""

    alert: str
    cause: Cause
    quiet: int
    firing: int
    summary: str
    subject: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """What of an alert fires in a minute: exactly these, each with `exp_labels` and `exp_annotations`."""

    alert: str
    at: int
    firing: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True)
class Timeline:
    """The samples of one replica: for each minute what `cause(metrics, minute)` left behind."""

    minutes: int
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, cause: Cause, *, minutes: int) -> Timeline:
        timeline, metrics = cls(minutes), Metrics()
        for minute in range(minutes):
            cause(metrics, minute)
            for family in metrics.registry.collect():
                for sample in family.samples:
                    # honorLabels: what a metric says of itself wins over what the scrape knows.
                    key = (sample.name, tuple(sorted({**TARGET, **sample.labels}.items())))
                    values = timeline.series.setdefault(key, [None] * minute)
                    values += [None] * (minute - len(values)) + [sample.value]
        return timeline

    def input_series(self) -> list[dict[str, str]]:
        """In promtool's notation; `_` is a minute without a sample."""
        return [
            {
                "series": name + "{" + ", ".join(f'{label}="{value}"' for label, value in labels) + "}",
                "values": " ".join("_" if value is None else repr(value) for value in values),
            }
            for (name, labels), values in self.series.items()
        ]


@dataclass(frozen=True, slots=True)
class Promtool:
    """The rules of a PrometheusRule, and the program that judges them."""

    program: Path
    groups: list[dict[str, Any]]
    directory: Path

    def rules(self) -> dict[str, dict[str, Any]]:
        """The alerts, by name."""
        return {rule["alert"]: rule for group in self.groups for rule in group["rules"] if "alert" in rule}

    def recorded(self) -> set[str]:
        """Names of the series that the rules make."""
        return {rule["record"] for group in self.groups for rule in group["rules"] if "record" in rule}

    def check(self) -> str:
        """promtool's own view of the file; AssertionError when something is wrong with it."""
        return self._run("check", "rules", "--lint=all", "--lint-fatal", str(self._write_rules()))

    def judge(self, timeline: Timeline, *moments: Moment) -> None:
        """AssertionError unless each is as it says. One run of the program judges them all."""
        document = {
            "rule_files": [str(self._write_rules())],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": timeline.input_series(),
                    "alert_rule_test": [
                        {"eval_time": f"{moment.at}m", "alertname": moment.alert, "exp_alerts": list(moment.firing)}
                        for moment in moments
                    ],
                }
            ],
        }
        path = self.directory / "tests.yaml"
        # JSON is YAML too, and hours of samples are written in no time.
        path.write_text(json.dumps(document))
        self._run("test", "rules", str(path))

    def _write_rules(self) -> Path:
        path = self.directory / "rules.yaml"
        path.write_text(json.dumps({"groups": self.groups}))
        return path

    def _run(self, *arguments: str) -> str:
        answer = subprocess.run([str(self.program), *arguments], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout


CATALOG = CatalogKey("storage", "orders")
SUBJECT = (("namespace", CATALOG.namespace), ("catalog", CATALOG.name))
WATERMARK_LAG = 600
"""Seconds by which the coordinator's watermark is behind its clock."""


def rounds(
    metrics: Metrics,
    minute: int,
    reason: str,
    *,
    behind: int = 3,
    pin: tuple[str, str, int] = ("LowWatermark", "", WATERMARK_LAG),
    lasts: bool = True,
    fenced: bool = False,
) -> None:
    """One round in this minute. `pin`: reason, participant, and how many seconds it is behind the clock."""
    now = datetime.fromtimestamp(minute * 60 + 3 * 86_400, UTC)
    kind, participant, age = pin
    status = CatalogCompactionStatus(
        conditions=conditions_for(
            (), reason=reason, message="", observed_generation=1, now=now, standing=standing_of(reason, lasts=lasts)
        ),
        earliest_version=10,
        latest_version=11 + behind,
        low_watermark=HybridTime(value=1, time=moment(now, WATERMARK_LAG)),
        required_time=RequiredTime(value=1, time=moment(now, age), reason=kind, participant=participant),
    )
    ended = (Ended(Process.COMPACTION, Finding(Reason.FENCED, "")),) if fenced else ()
    decision = CatalogDecision(CatalogMemory(status=status), ended=ended)
    metrics.catalogs.measure(CATALOG, status, decision)


def moment(now: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(now.timestamp() - seconds, UTC)


def healthy_catalog(metrics: Metrics, minute: int) -> None:
    """Pins come and go, a participant restarts now and then, a day of history is kept for a while by the watermark."""
    if minute % 90 < 60:
        rounds(metrics, minute, "Transaction", pin=("Transaction", "a", 7200))
    elif minute % 90 < 65:
        rounds(metrics, minute, "NoAnswer", lasts=minute % 2 == 0)
    elif minute % 90 < 67:
        rounds(metrics, minute, "LogUnavailable", lasts=False)
    else:
        rounds(metrics, minute, "LowWatermark", behind=40)


def history_pinned(metrics: Metrics, minute: int) -> None:
    """One pin takes turns with the next."""
    reason = ("Transaction", "Replay", "IndexConstruction", "UndefinedPartition")[minute % 4]
    if minute < 10:
        rounds(metrics, minute, "Compacted", behind=0)
    else:
        rounds(metrics, minute, reason, behind=7, pin=("Transaction", "a", 60 * minute))


def watermark_locked(metrics: Metrics, minute: int) -> None:
    """A participant's watermark stays: it is an hour behind the coordinator's after minute 70."""
    late = 60 * max(0, minute - 10)
    rounds(metrics, minute, "LowWatermark", behind=2, pin=("LowWatermark", "a", WATERMARK_LAG + late))


def pinned_and_short(metrics: Metrics, minute: int) -> None:
    """A participant is not ready for long, and there is nothing to cut."""
    rounds(metrics, minute, "NotReady", behind=0)


def participant_silent(metrics: Metrics, minute: int) -> None:
    reason = ("NoAnswer", "AnswerLate", "MissingParticipant")[minute % 3]
    rounds(metrics, minute, reason if minute >= 10 else "Compacted", lasts=minute > 11)


def log_does_not_answer(metrics: Metrics, minute: int) -> None:
    reason = "LogUnavailable" if minute % 2 else "SecretMissing"
    rounds(metrics, minute, reason if minute >= 10 else "Compacted")


def log_damaged(metrics: Metrics, minute: int) -> None:
    rounds(metrics, minute, "LogCorrupt" if minute >= 10 else "Compacted", lasts=minute > 11)


def snapshot_too_large(metrics: Metrics, minute: int) -> None:
    rounds(metrics, minute, "SnapshotRefused" if minute >= 10 else "Compacted")


def token_refused(metrics: Metrics, minute: int) -> None:
    rounds(metrics, minute, "Compacted" if minute != 11 else "Fenced", lasts=False, fenced=minute == 11)


def suspended(metrics: Metrics, minute: int) -> None:
    """What was wrong before the suspension is not wrong now."""
    rounds(metrics, minute, "NoAnswer" if minute < 5 else "Suspended")


_ANSWER = "storage/orders: a participant is missing, or has no answer that counts"
_LOG = "storage/orders: the update log cannot be read, or takes no snapshot"
_PINNED = "storage/orders: {} versions are kept that the watermark allows to cut"
CATALOG_CASES = [
    Case("CompactionCatalogPinned", history_pinned, 129, 130, _PINNED.format(7), SUBJECT),
    Case("CompactionCatalogPinned", watermark_locked, 190, 191, _PINNED.format(2), SUBJECT),
    Case("CompactionCatalogParticipantSilent", participant_silent, 19, 20, _ANSWER, SUBJECT),
    Case(
        "CompactionCatalogStalled",
        log_does_not_answer,
        19,
        20,
        "storage/orders: rounds fail, its condition Stalled is True",
        SUBJECT,
    ),
    Case("CompactionCatalogLogUnusable", log_damaged, 14, 15, _LOG, SUBJECT),
    Case("CompactionCatalogLogUnusable", snapshot_too_large, 14, 15, _LOG, SUBJECT),
    Case(
        "CompactionCatalogFencing",
        token_refused,
        10,
        11,
        "storage/orders: the log refused a coordinator's fencing token",
        SUBJECT,
    ),
]
ALONE = (participant_silent, log_damaged, snapshot_too_large, suspended)
"""Causes with an alert of their own, or none: they do not fire CompactionCatalogStalled."""
QUIET = (pinned_and_short, suspended)
"""What fires no alert at all."""
