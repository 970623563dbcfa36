"""What a Spark application costs before it works, each step of the trimming beside the start without it, and the share
of that cost in a batch of 64 jobs.

Every start is a process of its own: Java, context, a first task in a Python worker, and the end; CPU seconds include
the JVM and the Python workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.harness import Curve, Fact, Race, Side, Target, Workspace
from bench.sensor import build
from compaction.api.job.job_status import ReportOutcome
from compaction.local.processes.process import class_archives
from compaction.local.programs.spark_archive import ensure_archive
from compaction.segments.commit import fence
from compaction.segments.generate import generate_log
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.worker.spark import settings as spark_settings
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings
from support.processes.worker_ports import FakeLease, assignment, job_spec

SLOTS = 2


def start(
    settings: SparkSettings, *, defaults: Mapping[str, str] | None = None, java: str | None = None
) -> Callable[[], None]:
    """A whole application that runs one trivial task. `defaults`, `java`: in place of this project's."""

    def run() -> None:
        if defaults is not None:
            spark_settings._DEFAULTS = defaults  # type: ignore[misc]
        if java is not None:
            spark_settings._JAVA_OPTIONS = java  # type: ignore[misc]
        with SparkEngine(settings):
            pass

    return run


def batch(root: Path, template: Path, *, jobs: int) -> Callable[[SparkEngine], None]:
    """Jobs over as many logs, two at a time as a worker does, all of which succeed."""
    build(root, template, logs=jobs)
    logs = sorted(path for path in root.glob("*/*"))

    def one(engine: SparkEngine, log: Path) -> None:
        fence.claim(log, job="job-1", token=1, holder="bench")
        report = SegmentRewriter(engine, holder="bench").run(assignment(job_spec(log), token=1), FakeLease(token=1))
        assert report.outcome is ReportOutcome.SUCCEEDED, report.message

    def run(engine: SparkEngine) -> None:
        with ThreadPoolExecutor(SLOTS) as pool:
            list(pool.map(lambda log: one(engine, log), logs))

    return run


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    archives = workspace.directory / "archives"
    log_file = workspace.directory / "spark.log"
    settings = SparkSettings(scratch_parent=workspace.directory, log_file=log_file, archives=class_archives())
    if workspace.pick(True, False):
        began = time.perf_counter()
        size = ensure_archive(archives, report=lambda _: None).stat().st_size
        yield Fact("class archive", f"{size / 2**20:.0f} MiB, made once in {time.perf_counter() - began:.0f} s")
        settings = replace(settings, archives=archives)
        for title, rival in steps(settings):
            yield Race(
                f"start: {title}", "starts", 1, Side("as it is", start(settings)), rival, rounds=3, isolated=True
            )
    segments = workspace.pick(16, 2)
    template = workspace.directory / "template"
    entries = workspace.pick(4096, 16)
    generate_log(template, segments=segments, entries_per_segment=entries, payload_bytes=1024, sync=False)
    yield from _share(workspace, settings, template, segments=segments)


def steps(settings: SparkSettings) -> Iterator[tuple[str, Side]]:
    """Each thing that was trimmed, undone by itself; and all of them."""
    ours, java = dict(spark_settings._DEFAULTS), spark_settings._JAVA_OPTIONS
    without = replace(settings, archives=None)
    yield "class archive", Side("without", start(without))
    plain = java.replace("-XX:TieredStopAtLevel=1", "")
    yield "C1 compiler only (TieredStopAtLevel=1)", Side("all compilers", start(settings, java=plain))
    yield "serial collector", Side("G1", start(settings, java=java.replace("-XX:+UseSerialGC", "")))
    yield "no web UI", Side("with UI", start(settings, defaults={**ours, "spark.ui.enabled": "true"}))
    nothing = start(without, defaults={"spark.ui.showConsoleProgress": "false"}, java="-Djava.io.tmpdir={scratch}")
    yield "all of it", Side("plain Spark", nothing)


def _share(workspace: Workspace, settings: SparkSettings, template: Path, *, segments: int) -> Iterator[Race | Fact]:
    jobs = workspace.pick(64, 2)
    run = batch(workspace.directory / "logs", template, jobs=jobs)
    times: list[float] = []

    def whole() -> None:
        began, engine = time.perf_counter(), SparkEngine(settings)
        with engine:
            up = time.perf_counter()
            run(engine)
            done = time.perf_counter()
        times.extend((up - began + time.perf_counter() - done, done - up))

    def threads_only() -> None:
        """The start alone, as the rival in CPU seconds."""
        start(settings)()

    yield Race(
        f"{jobs} jobs of {segments} segments in one application",
        "jobs",
        jobs,
        Side("whole batch", whole),
        Side("start and end alone", threads_only),
        target=Target("fixed cost <= 10 %", lambda result: result.ratio <= 0.1),
        rounds=1,
    )
    fixed, work = times
    share = fixed / (fixed + work)
    yield Fact("... share of the fixed cost, wall", f"{share:.1%} ({fixed:.1f} s of {fixed + work:.1f} s)")
