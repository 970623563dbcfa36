"""The same rewrite on a real Spark application: jobs side by side, cancellation, heartbeats, sudden death."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from compaction.segments.commit import fence
from compaction.segments.generate import Pattern
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.storage.pace import Pace
from compaction.worker.attempt import Inbox, metering
from compaction.worker.errors import JavaError, LeaseLostError, TaskCancelledError, TaskFailedError
from compaction.worker.keeper import Heartbeat
from compaction.worker.loop import Worker, WorkerExit
from compaction.worker.ports import TasksUsage
from compaction.worker.scratch import PREFIX, scratch_directory
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import find_java
from support.clocks import PATIENCE_SECONDS
from support.processes.operators import command_line, descendants, still_alive
from support.processes.worker_ports import Cluster, FakeLease, assignment, job_spec
from support.segments.segment_logs import content, leftovers
from support.timing import at_depth

pytestmark = pytest.mark.spark

MakeLog = Callable[..., Path]
SMALL = SegmentLimits(max_entries=64)


def driver_program(body: str) -> str:
    """A program that runs `body` in a process of its own, with a Spark engine that keeps its files in its directory."""
    return f"""
import os, signal, sys, time
from pathlib import Path
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from compaction.local.processes.process import class_archives
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings
with SparkEngine(SparkSettings(master="local[2]", scratch_parent=Path.cwd(), archives=class_archives())) as engine:
{textwrap.indent(body, "    ")}
"""


@contextmanager
def driver(body: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The program of `driver_program` running; killed at the latest at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", driver_program(body)], stdout=subprocess.PIPE, text=True, cwd=directory
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_jobs_of_several_logs_at_once(make_log: MakeLog, spark: SparkEngine) -> None:
    logs = [make_log(pattern.value, pattern=pattern, segments=16) for pattern in Pattern]
    before = [content(log) for log in logs]
    cluster = Cluster()
    inbox: Inbox = queue.SimpleQueue()
    for number, log in enumerate(logs):
        fence.claim(log, job=f"j-{number}", token=3, holder="coordinator")
        cluster.assign(f"j-{number}", job_spec(log, limits=SMALL), token=3)
    worker = Worker(
        heartbeat=Heartbeat(cluster.connect(), inbox=inbox, slots=4, lease_seconds=60),
        inbox=inbox,
        runner=SegmentRewriter(spark, holder="w"),
        slots=4,
        idle_seconds=0.5,
    )
    assert worker.run() is WorkerExit.IDLE
    for number, log in enumerate(logs):
        report = cluster.leases[f"j-{number}"].report
        assert report is not None
        assert report.outcome is ReportOutcome.SUCCEEDED, report.message
        assert content(log) == before[number]
        assert leftovers(log) == []


def test_heartbeats_continue_during_a_long_rewrite(spark: SparkEngine) -> None:
    """All cores busy with Python for longer than the lease: a heartbeat that waited for them would lose it."""

    def burn(seconds: float) -> int:
        until, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            rounds += sum(range(1000)) > 0
        return rounds

    cluster = Cluster()
    inbox: Inbox = queue.SimpleQueue()
    heartbeat = Heartbeat(cluster.connect(), inbox=inbox, slots=1, lease_seconds=2)
    heartbeat.start()
    began = time.monotonic()
    futures = [spark.submit(burn, at_depth(short=3.0, deep=6.0), tag="long") for _ in range(spark.parallelism)]
    assert all(future.result() > 0 for future in futures)
    ended = time.monotonic()
    heartbeat.close(leave=True)
    beats = [moment for moment in cluster.worker_renewals if began <= moment <= ended]
    gaps = [later - earlier for earlier, later in pairwise(beats)]
    assert len(beats) >= at_depth(short=3, deep=6)
    assert max(gaps) < 2, "never as long as the lease"


def test_cancelled_tasks_end_soon_and_others_go_on(spark: SparkEngine) -> None:
    doomed = [spark.submit(time.sleep, 300, tag="doomed") for _ in range(6)]
    time.sleep(0.5)
    spark.cancel("doomed")
    for future in doomed:
        assert future.cancelled() or isinstance(future.exception(), TaskCancelledError)
    assert spark.submit(abs, -4, tag="other").result(timeout=PATIENCE_SECONDS) == 4
    assert spark.submit(abs, -5, tag="doomed").result(timeout=PATIENCE_SECONDS) == 5, "the tag may be used again"


def test_task_that_raises_is_named(spark: SparkEngine) -> None:
    with pytest.raises(TaskFailedError, match="ValueError: invalid literal"):
        spark.submit(int, "x", tag="bad").result()


def test_task_whose_process_dies_is_not_the_engines_end(spark: SparkEngine) -> None:
    with pytest.raises(TaskFailedError):
        spark.submit(os._exit, 9, tag="crash").result()
    assert spark.submit(abs, -1, tag="after").result() == 1


def test_an_attempt_is_charged_with_what_its_python_processes_used(spark: SparkEngine) -> None:
    def work(seconds: float) -> int:
        began, space = time.process_time(), bytearray(64 << 20)
        pace = Pace()
        pace(5)
        pace(7, written=True)
        while time.process_time() - began < seconds:
            pass
        return len(space)

    lease = FakeLease()
    with metering(spark, lease, tag="job.1"):
        for future in [spark.submit(work, 0.2, tag="job.1") for _ in range(3)]:
            future.result()
    used = lease.usage
    assert used is not None
    assert used.executor_cpu_seconds is not None
    assert used.executor_cpu_seconds >= 0.6
    assert used.cpu_seconds is not None
    assert used.cpu_seconds >= used.executor_cpu_seconds
    assert used.executor_peak_bytes is not None
    assert used.executor_peak_bytes > 64 << 20
    assert (used.bytes_read, used.bytes_written) == (15, 21)
    assert (used.driver_peak_bytes is not None) == Path("/proc/self/status").exists()


@pytest.mark.parametrize("last_words", [(int, "x"), (os._exit, 9)], ids=["raises", "dies"])
def test_what_a_task_did_not_live_to_say_is_absent(
    spark: SparkEngine, last_words: tuple[Callable[..., object], object]
) -> None:
    work, argument = last_words
    lease = FakeLease()
    with suppress(TaskFailedError), metering(spark, lease, tag="job.2"):
        spark.submit(abs, -1, tag="job.2").result()
        spark.submit(work, argument, tag="job.2").result()
    assert lease.usage is not None
    assert lease.usage.driver_cpu_seconds is not None
    assert (lease.usage.executor_cpu_seconds, lease.usage.cpu_seconds, lease.usage.bytes_read) == (None, None, None)
    assert spark.usage("job.2") == TasksUsage(), "the next attempt begins with nothing"


def test_lease_lost_half_way_leaves_no_partial_file(make_log: MakeLog, spark: SparkEngine) -> None:
    directory = make_log(segments=30)
    before = content(directory)
    lease = FakeLease(lose_at=4)
    with pytest.raises(LeaseLostError):
        SegmentRewriter(spark, holder="w").run(assignment(job_spec(directory, limits=SMALL)), lease)
    assert leftovers(directory) == []
    assert content(directory) == before


def test_jvm_that_dies_is_an_engine_lost(tmp_path: Path, make_log: MakeLog) -> None:
    program = driver_program("""
from compaction.worker.errors import EngineLostError
future = engine.submit(time.sleep, 300, tag="x")
time.sleep(1)
os.kill(engine.pids[0], signal.SIGKILL)
try:
    future.result()
except EngineLostError as error:
    print("lost:", error)
""")
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    assert "exit code -9" in answer.stdout
    assert list(tmp_path.glob(PREFIX + "*")) == []


def test_killed_driver_leaves_no_process_and_the_next_one_its_files(tmp_path: Path) -> None:
    body = """
engine.submit(time.sleep, 300, tag="x")
engine.submit(time.sleep, 300, tag="x")
print("ready", flush=True)
time.sleep(300)
"""
    with driver(body, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        family = descendants(process.pid)
        names = " ".join(command_line(member) for member in family)
        assert "java" in names
        assert "pyspark.daemon" in names
        process.kill()
        process.wait()
        assert still_alive(family, seconds=60) == []
    assert len(list(tmp_path.glob(PREFIX + "*"))) == 1
    with scratch_directory(tmp_path) as mine:
        assert [path.name for path in tmp_path.glob(PREFIX + "*")] == [mine.name]


def test_killed_worker_is_followed_by_an_attempt_that_finishes_once(
    tmp_path: Path, make_log: MakeLog, spark: SparkEngine
) -> None:
    """SIGKILL between two commits of one job; then a larger token; then the dead attempt's token tries once more."""
    directory = make_log(segments=40)
    before = content(directory)
    spec = job_spec(directory, limits=SMALL)
    planned = spec.sources.segment_log
    assert planned is not None
    (tmp_path / "spec.json").write_text(spec.model_dump_json(by_alias=True))
    body = f"""
from pathlib import Path
from compaction.api.job.job import CompactionJobSpec
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.storage.pace import Pace
from support.processes.worker_ports import FakeLease, assignment

class Announcing(FakeLease):
    def set_progress(self, percent):
        print(percent, flush=True)
        time.sleep(0.3)

spec = CompactionJobSpec.model_validate_json(Path({str(tmp_path / "spec.json")!r}).read_text())
SegmentRewriter(engine, holder="doomed").run(assignment(spec), Announcing())
"""
    with driver(body, tmp_path) as process:
        assert process.stdout is not None
        while len(fence.read(directory).receipts) < 2:
            assert process.stdout.readline(), "the driver ended early"
        process.kill()
        process.wait()
    done = len(fence.read(directory).receipts)
    assert 2 <= done < len(planned.groups)
    fence.claim(directory, job="job-1", token=2, holder="coordinator")
    report = SegmentRewriter(spark, holder="second").run(assignment(spec, token=2), FakeLease(token=2))
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    receipts = fence.read(directory).receipts
    assert len(receipts) == len({receipt.group for receipt in receipts}) == len(planned.groups)
    assert {receipt.token for receipt in receipts} == {1, 2}
    assert content(directory) == before
    zombie = SegmentRewriter(spark, holder="zombie").run(assignment(spec, token=1), FakeLease(token=1))
    assert zombie.reason == JobReason.STALE_TOKEN
    assert fence.read(directory).receipts == receipts


def test_master_that_is_no_master_is_a_clear_error(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings
from compaction.worker.errors import EngineStartError
try:
    SparkEngine(SparkSettings(master="lokal", log_file=Path({str(tmp_path / "log")!r}))).start()
except EngineStartError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "lokal" in answer.stdout
    assert str(tmp_path / "log") in answer.stdout


def test_java_is_found_or_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_java().version >= 17
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=r"JAVA_HOME is .*no program.*openjdk-17"):
        find_java()
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(JavaError, match="is Java 8, Spark needs 17"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(JavaError, match="no java on PATH"):
        find_java()
