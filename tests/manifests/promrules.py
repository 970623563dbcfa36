"""Alerts tried by promtool on series that the operator's own metrics made, minute by minute."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction.kube.metrics.registry import Metrics

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
        return {rule["alert"]: rule for group in self.groups for rule in group["rules"]}

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
