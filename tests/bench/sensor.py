"""The look at a store of 10,000 logs with 100 segments each in which nothing has changed.

Rivals: a look with nothing remembered (what a restart costs), and one that asks every file (the rule of `make`, and of
this project before). The million files are hard links to one log's: real segments, in a million directory entries.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.harness import Curve, Fact, Race, Side, Workspace, least_ratio
from compaction.api.policy.policy import CompactionPolicySpec
from compaction.segments.generate import generate_log
from compaction.segments.scan.find import SETTLE_SECONDS
from compaction.segments.scan.sense import content_of
from compaction.storage.adapter import SenseRequest, StoreAdapter, open_store


def build(root: Path, template: Path, *, logs: int) -> None:
    """Copies of a log that share its files."""
    files = [str(path.relative_to(template)) for path in template.rglob("*") if path.is_file()]
    directories = [str(path.relative_to(template)) for path in template.rglob("*") if path.is_dir()]
    for number in range(logs):
        log = f"{root}/tenant-{number % 100:02d}/log-{number:05d}"
        os.makedirs(log)
        for directory in sorted(directories):
            os.mkdir(f"{log}/{directory}")
        for file in files:
            os.link(template / file, f"{log}/{file}")


class Coordinator:
    """A store as the coordinator keeps it, and a clock that may be told that time has passed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.number = 0
        self.forget()

    def forget(self) -> None:
        """As after a restart."""
        spec = CompactionPolicySpec.model_validate({"store": {"segmentLogs": {"root": str(self.root)}}})
        self.store: StoreAdapter = open_store(spec, holder="bench", clock=lambda: self.now)

    def look(self) -> int:
        """One look at everything, as a reconcile asks for it; the number of logs."""
        self.number += 1
        self.now += SETTLE_SECONDS
        sensed = self.store.sense(SenseRequest(self.number, generation=1, asked=self.now))
        assert sensed.reading.problem is None
        assert sensed.reading.problems == ()
        return len(sensed.reading.candidates)


def ask_every_file(root: Path) -> Callable[[], object]:
    """What an unchanged log cost before: every directory listed, every file asked."""

    def run() -> int:
        return sum(
            len(content_of(Path(path))) for path, _, files in os.walk(root) if "0000000000000001.segment" in files
        )

    return run


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    logs, segments = workspace.pick(10_000, 20), workspace.pick(100, 10)
    template, root = workspace.directory / "template", workspace.directory / "root"
    generate_log(template, segments=segments, entries_per_segment=16, payload_bytes=32, sync=False)
    build(root, template, logs=logs)
    gc.collect()
    before = psutil.Process().memory_info().rss
    coordinator = Coordinator(root)
    for _ in range(4):
        assert coordinator.look() == logs
    gc.collect()
    memory = psutil.Process().memory_info().rss - before
    yield Fact(f"memory of {logs:,} logs with {segments} segments", f"{memory / logs / 1024:.1f} KiB per log")
    cold = Coordinator(root)
    yield Race(
        f"look at {logs:,} unchanged logs with {segments} segments",
        "logs",
        logs,
        Side("incremental", coordinator.look),
        Side("full look", cold.look, prepare=cold.forget),
        target=least_ratio(50),
        rounds=1,
    )
    yield Race(
        f"look at {logs:,} unchanged logs with {segments} segments, every file asked",
        "logs",
        logs,
        Side("incremental", coordinator.look),
        Side("every file asked", ask_every_file(root)),
        rounds=3,
    )
