"""`compactor run --watch`: the operator's decisions in one process, for as long as somebody lets it run."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from compaction.api.job.job_status import JobReport
from compaction.api.names import ANNOTATION_APPROVE
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.local import run
from compaction.cli.local.policy_file import PolicyFile, load_policies
from compaction.local.run.job import PLAN_PENDING, News
from compaction.local.run.once import LocalWatch, look
from compaction.segments.generate import Pattern, corrupt_entry, generate_log
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.storage.adapter import StoreAdapter, open_store
from compaction.worker.errors import EngineLostError, EngineStartError
from compaction.worker.ports import Assignment, HeldLease, JobRunner
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import exit_code
from support.cluster.manifests import policy_object
from support.processes.worker_ports import ThreadEngine
from support.segments.segment_logs import content, leftovers

Wrap = Callable[[JobRunner], JobRunner]


def add_log(root: Path, name: str) -> Path:
    generate_log(
        root / name, pattern=Pattern.STRIDED, segments=9, entries_per_segment=64, payload_bytes=128, sync=False
    )
    return root / name


def policy_text(root: Path, *, annotations: dict[str, str] | None = None, **spec: Any) -> str:
    defaults: dict[str, Any] = {
        "store": {"segmentLogs": {"root": str(root), "maxEntriesPerSegment": 64}},
        "trigger": {"interval": "200ms"},
        "cleanup": {"delay": "1h"},
        "workers": {"idleSeconds": 1},
    }
    metadata = {"name": "logs", "annotations": annotations or {}}
    kind = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy"}
    return yaml.safe_dump({**kind, "metadata": metadata, "spec": defaults | spec})


def policy_of(text: str) -> CompactionPolicy:
    (policy,) = load_policies(text, source="test")
    return policy


@dataclass
class Watched:
    """A watch in a thread of its own, and all that it told."""

    policy: CompactionPolicy
    wrap: Wrap = lambda runner: runner
    news: list[News] = field(default_factory=list)
    changed: list[CompactionPolicy] = field(default_factory=list)
    engines: int = 0
    running: int = 0
    start_errors: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = LocalWatch(
            self.policy,
            open_store=lambda policy: open_store(policy.spec, holder="local"),
            open_runner=lambda policy: self._engine(),
            reread=lambda: self.changed.pop() if self.changed else None,
            tell=self.news.append,
        )
        self._thread = threading.Thread(target=self.watch.run, name="watch")
        self._thread.start()

    @contextmanager
    def _engine(self) -> Iterator[JobRunner]:
        if self.start_errors:
            raise self.start_errors.pop()
        engine = ThreadEngine()
        self.engines += 1
        self.running += 1
        try:
            yield self.wrap(SegmentRewriter(engine, holder="local"))
        finally:
            self.running -= 1
            engine.close()

    def stop(self) -> None:
        self.watch.stop()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def told(self, reason: str) -> list[News]:
        return [item for item in self.news if item.reason == reason]

    def await_told(self, reason: str, count: int = 1) -> News:
        eventually(lambda: len(self.told(reason)) >= count, f"news {reason}, {count} times", pause=0.02)
        return self.told(reason)[count - 1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ra").mkdir()
    return tmp_path / "ra"


@pytest.fixture
def begin(root: Path) -> Iterator[Callable[..., Watched]]:
    """Begin a watch over `root`; it is stopped at the end of the test."""
    begun: list[Watched] = []

    def begin(*, wrap: Wrap = lambda runner: runner, annotations: Any = None, **spec: Any) -> Watched:
        begun.append(Watched(policy_of(policy_text(root, annotations=annotations, **spec)), wrap))
        return begun[-1]

    yield begin
    for watched in begun:
        watched.stop()
        assert watched.running == 0


def test_spark_is_started_again_when_the_settings_of_workers_change(root: Path, begin: Callable[..., Watched]) -> None:
    """A worker with other settings gets no more jobs, and would stay for as long as it may be idle."""
    add_log(root, "first")
    watched = begin(workers={"idleSeconds": 3600, "slots": 1})
    watched.await_told("Succeeded")
    watched.changed.append(policy_of(policy_text(root, workers={"idleSeconds": 3600, "slots": 2})))
    watched.await_told("PolicyChanged")
    add_log(root, "second")
    watched.await_told("WorkerLaunched", 2)
    watched.await_told("Succeeded", 2)
    assert (watched.engines, watched.running) == (2, 1)


def test_debt_is_compacted_whenever_it_appears_and_spark_runs_only_meanwhile(
    root: Path, begin: Callable[..., Watched]
) -> None:
    first = add_log(root, "first")
    before = content(first)
    watched = begin()
    watched.await_told("Succeeded")
    watched.await_told("WorkerStopped")
    assert (watched.engines, watched.running) == (1, 0)
    second = add_log(root, "second")
    after = content(second)
    watched.await_told("Succeeded", 2)
    watched.stop()
    assert watched.engines == 2
    assert (content(first), content(second)) == (before, after)
    assert leftovers(first) == leftovers(second) == []
    status = watched.watch.objects.policy.status
    assert status.succeeded == 2
    assert status.bytes_reclaimed > 0


def test_replaced_names_are_deleted_after_the_grace(root: Path, begin: Callable[..., Watched]) -> None:
    log = add_log(root, "a")
    before = content(log)
    watched = begin(cleanup={"delay": "1s"})
    watched.await_told("Swept")
    eventually(lambda: not [path for path in log.glob("*.segment") if path.is_symlink()], "the old names to be deleted")
    watched.stop()
    assert watched.watch.deleted > 0
    assert content(log) == before


def test_a_root_that_is_away_for_a_while_is_told_and_survived(root: Path, begin: Callable[..., Watched]) -> None:
    root.rename(root.with_name("away"))
    watched = begin()
    gone = watched.await_told("RootNotFound")
    assert gone.warning
    assert f"{root} does not exist" in gone.message
    add_log(root.with_name("away"), "a")
    root.with_name("away").rename(root)
    watched.await_told("Succeeded")


def test_a_damaged_segment_is_set_aside_once_and_its_siblings_are_compacted(
    root: Path, begin: Callable[..., Watched]
) -> None:
    log = add_log(root, "a")
    damaged = "0000000000000003.segment"
    corrupt_entry(log, segment=damaged, record=0)
    watched = begin()
    watched.await_told("SourcesQuarantined")
    watched.await_told("Succeeded")
    watched.stop()
    assert len(watched.told("Quarantined")) == 1
    (source,) = watched.watch.objects.policy.status.quarantined
    assert (source.target, source.source) == (str(log), damaged)
    assert (log / damaged).is_file()


class Hooked:
    """Calls `before` first; what it raises is the attempt's end."""

    def __init__(self, runner: JobRunner, before: Callable[[HeldLease], None]) -> None:
        self._runner, self._before = runner, before

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        self._before(lease)
        return self._runner.run(assignment, lease)


def test_stopping_ends_running_jobs_before_their_next_commit(root: Path, begin: Callable[..., Watched]) -> None:
    log = add_log(root, "a")
    before = content(log)
    entered = threading.Event()

    def wait_for_the_end(lease: HeldLease) -> None:
        entered.set()
        eventually(lease.should_stop, "the stop to reach the job", pause=0.01)

    watched = begin(wrap=lambda runner: Hooked(runner, wait_for_the_end))
    assert entered.wait(PATIENCE_SECONDS)
    watched.stop()
    assert watched.told("Succeeded") == []
    assert content(log) == before
    assert leftovers(log) == []


def test_an_engine_that_dies_is_replaced_and_nobody_is_charged(root: Path, begin: Callable[..., Watched]) -> None:
    add_log(root, "a")
    deaths = [EngineLostError("Spark went away")]

    def die_once(_lease: HeldLease) -> None:
        if deaths:
            raise deaths.pop()

    watched = begin(wrap=lambda runner: Hooked(runner, die_once))
    watched.await_told("Succeeded")
    watched.stop()
    assert watched.engines == 2
    (job,) = watched.watch.objects.jobs.values()
    assert [(attempt.outcome, attempt.charged) for attempt in job.status.attempts] == [
        ("Lost", False),
        ("Succeeded", False),
    ]


def test_an_engine_that_does_not_start_is_told_and_tried_again(root: Path) -> None:
    add_log(root, "a")
    watched = Watched(policy_of(policy_text(root)), start_errors=[EngineStartError("no memory")])
    try:
        assert watched.await_told("LaunchFailed").message == "no memory"
        watched.await_told("Succeeded")
    finally:
        watched.stop()


def test_a_changed_policy_is_in_force_at_once(root: Path, begin: Callable[..., Watched]) -> None:
    add_log(root, "a")
    watched = begin(suspend=True)
    watched.await_told("Suspended")
    watched.changed.append(policy_of(policy_text(root)))
    watched.await_told("PolicyChanged")
    watched.await_told("Succeeded")


def test_a_plan_waits_until_the_file_names_its_hash(root: Path, begin: Callable[..., Watched]) -> None:
    log = add_log(root, "a")
    watched = begin(approval="Manual")
    plan_hash = watched.await_told(PLAN_PENDING).message.partition(":")[0]
    watched.await_told("ApprovalPending")
    assert watched.watch.objects.jobs == {}
    wrong = policy_text(root, approval="Manual", annotations={"compaction.dev/approve": "0123456789abcdef"})
    watched.changed.append(policy_of(wrong))
    watched.await_told("PolicyChanged")
    right = policy_text(root, approval="Manual", annotations={"compaction.dev/approve": plan_hash})
    watched.changed.append(policy_of(right))
    watched.await_told("Succeeded")
    watched.stop()
    assert [job.spec.sources.segment_log.path for job in watched.watch.objects.jobs.values()] == [str(log)]  # type: ignore[union-attr]
    assert watched.watch.objects.policy.status.plan is not None
    assert watched.watch.objects.policy.status.plan.hash == plan_hash


def test_the_hash_is_the_one_that_a_dry_run_shows(root: Path, begin: Callable[..., Watched]) -> None:
    add_log(root, "a")
    policy = policy_of(policy_text(root, approval="Manual"))
    _, plan = look(policy, open_store(policy.spec, holder="local"))
    watched = begin(approval="Manual")
    assert watched.await_told(PLAN_PENDING).message.startswith(f"{plan.hash}: 1 job, ")


def test_outside_its_windows_jobs_wait(root: Path, begin: Callable[..., Watched]) -> None:
    add_log(root, "a")
    never_now = (datetime.now(UTC) + timedelta(days=180)).strftime("0 0 1 %b *").upper()
    window = {"schedule": never_now, "duration": "1h"}
    watched = begin(trigger={"interval": "200ms", "windows": [window]})
    watched.await_told("OutsideWindow")
    assert watched.engines == 0
    assert watched.told("Succeeded") == []


def test_jobs_get_their_share_of_the_speed(root: Path, begin: Callable[..., Watched]) -> None:
    add_log(root, "a")
    shares: list[int | None] = []

    class Noting:
        def __init__(self, runner: JobRunner) -> None:
            self._runner = runner

        def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
            shares.append(assignment.bytes_per_second)
            return self._runner.run(assignment, lease)

    watched = begin(wrap=Noting, limits={"bytesPerSecond": "64Mi"})
    watched.await_told("Succeeded")
    assert shares == [64 << 20]


@pytest.mark.spark
def test_the_command_with_spark_ends_in_order_on_a_signal(root: Path, tmp_path: Path) -> None:
    """Both signals have one handler. SIGINT: see below."""
    log = add_log(root, "a")
    before = content(log)
    data = ended_by(signal.SIGTERM, root, tmp_path, "Succeeded")
    assert (data["succeeded"], data["unfinished"]) == (1, 0)
    assert data["bytesReclaimed"] > 0
    assert content(log) == before


def test_the_command_that_had_nothing_to_do_ends_in_order_on_an_interrupt(root: Path, tmp_path: Path) -> None:
    data = ended_by(signal.SIGINT, root, tmp_path, "NoLogsFound")
    assert (data["succeeded"], data["unfinished"], data["bytesReclaimed"]) == (0, 0, 0)


def test_a_signal_that_comes_before_there_is_anything_to_end_ends_what_begins_then(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen beside catalogs, which were watched already: the process ended by the signal, without a summary."""
    file = tmp_path / "policy.yaml"
    file.write_text(policy_text(root))

    def open_late(*given: Any, **options: Any) -> StoreAdapter:
        signal.raise_signal(signal.SIGTERM)
        return open_store(*given, **options)

    monkeypatch.setattr(run, "open_store", open_late)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nothing waits for the signal"))
    try:
        assert exit_code(["run", "-f", str(file), "--watch", "-o", "json"]) == 0
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)
    assert json.loads(capsys.readouterr().out)["unfinished"] == 0


def ended_by(signum: int, root: Path, tmp_path: Path, said: str) -> Any:
    """The summary of a real process, on stdout; what happens is on stderr, the exit code 0, and nothing is left
    behind.
    """
    file, scratch = tmp_path / "policy.yaml", tmp_path / "tmp"
    scratch.mkdir()
    file.write_text(policy_text(root, workers={"sparkMaster": "local[2]", "idleSeconds": 60}))
    command = [sys.executable, "-W", "error", "-m", "compaction.cli.main", "run", "-f", str(file), "--watch"]
    environment = os.environ | {"TMPDIR": str(scratch)}
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen([*command, "-o", "json"], stdout=subprocess.PIPE, stderr=stderr, env=environment) as process,
    ):
        try:
            eventually(lambda: said in errors.read_text(), f"{said} to be told")
            file.write_text("spec: [")
            eventually(lambda: "the policy stays as it was" in errors.read_text(), "the broken file to be told")
        finally:
            process.send_signal(signum)
        stdout, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors.read_text()
    assert "Traceback" not in errors.read_text()
    assert list(scratch.iterdir()) == []
    return json.loads(stdout)


# The policy's file of a watch: what counts as a change, and what does not.


def write(path: Path, **spec: Any) -> None:
    """Another file under the name, as editors make it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(policy_object(**spec)))
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "policy.yaml")
    return tmp_path / "policy.yaml"


def opened(path: Path, *, wanted: str | None = None, approved: str | None = None) -> PolicyFile:
    with path.open() as source:
        return PolicyFile(source, wanted=wanted, approved=approved)


def test_only_a_policy_that_says_something_else_is_a_change(path: Path) -> None:
    file = opened(path)
    assert file.reread() is None
    write(path)
    assert file.reread() is None, "the same words in another file"
    write(path, suspend=True)
    changed = file.reread()
    assert changed is not None
    assert changed.spec.suspend
    assert file.reread() is None


def test_a_broken_or_absent_file_leaves_the_policy_as_it_was(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = opened(path)
    path.write_text("spec: [")
    assert file.reread() is None
    assert "not valid YAML" in (told := capsys.readouterr().err)
    assert told.endswith("the policy stays as it was\n")
    assert file.reread() is None
    assert capsys.readouterr().err == "", "told once"
    path.unlink()
    assert file.reread() is None
    write(path, suspend=True)
    assert file.reread() is not None


def test_the_hash_on_the_command_line_gives_way_to_the_one_in_the_file(path: Path) -> None:
    file = opened(path, approved="4d5e")
    assert file.policy.metadata.annotations == {ANNOTATION_APPROVE: "4d5e"}
    document = policy_object()
    document["metadata"]["annotations"] = {ANNOTATION_APPROVE: "9999"}
    path.write_text(yaml.safe_dump(document))
    changed = file.reread()
    assert changed is not None
    assert changed.metadata.annotations == {ANNOTATION_APPROVE: "9999"}


def test_standard_input_is_read_once(path: Path) -> None:
    source = io.StringIO(path.read_text())
    source.name = "<stdin>"
    assert PolicyFile(source, wanted=None, approved=None).reread() is None


def test_a_wrong_choice_is_wrong_usage(path: Path) -> None:
    with pytest.raises(click.UsageError, match="no policy other; there are logs"):
        opened(path, wanted="other")
