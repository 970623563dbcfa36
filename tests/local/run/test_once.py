"""`compactor run`: the whole way from a policy file to receipts on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.enums import JobReason, JobState
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.cli.local.policy_file import load_policies
from compaction.cli.main import main
from compaction.errors import InvalidManifestError
from compaction.kube.errors import PlanNotApprovedError
from compaction.local.errors import RootUnreadableError
from compaction.local.run.job import RunResult
from compaction.local.run.once import LocalRun
from compaction.segments.commit import fence
from compaction.segments.format.segment_file import read_segment
from compaction.segments.generate import Pattern, corrupt_entry, generate_log
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.segments.snapshot.directories import newest_snapshot
from compaction.storage.adapter import open_store
from compaction.worker.ports import Assignment, HeldLease, JobRunner
from support.processes.worker_ports import ThreadEngine, wait_until
from support.segments.segment_logs import content, leftovers, regular

Run = Callable[..., RunResult]


def policy_text(
    root: Path, *, annotations: dict[str, str] | None = None, thresholds: dict[str, Any] | None = None, **spec: Any
) -> str:
    store = {"segmentLogs": {"root": str(root), "maxEntriesPerSegment": 64, "thresholds": thresholds or {}}}
    return yaml.safe_dump(
        {
            "apiVersion": "compaction.dev/v1alpha1",
            "kind": "CompactionPolicy",
            "metadata": {"name": "logs", "annotations": annotations or {}},
            "spec": {"store": store} | spec,
        }
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four small logs, one per pattern."""
    for pattern in Pattern:
        generate_log(
            tmp_path / "ra" / pattern.value,
            pattern=pattern,
            segments=12,
            entries_per_segment=64,
            payload_bytes=128,
            sync=False,
        )
    return tmp_path / "ra"


@pytest.fixture
def run(root: Path) -> Iterator[Run]:
    """Run a policy over `root`; the rewriting is done by threads."""
    engine = ThreadEngine()

    def run(*, runner: JobRunner | None = None, **spec: Any) -> RunResult:
        (policy,) = load_policies(policy_text(root, **spec), source="test")

        @contextmanager
        def open_runner() -> Iterator[JobRunner]:
            yield runner or SegmentRewriter(engine, holder="local")

        return LocalRun(policy, store=open_store(policy.spec, holder="local"), open_runner=open_runner).run()

    yield run
    engine.close()


def damage(log: Path) -> str:
    """Damage a live entry of the third segment; returns the segment's name."""
    name = "0000000000000003.segment"
    snapshot = newest_snapshot(log)
    assert snapshot is not None
    assert snapshot.live is not None
    live = snapshot.live
    record = next(i for i, index in enumerate(read_segment(log / name).idx.tolist()) if index in live)
    corrupt_entry(log, segment=name, record=record)
    return name


def logs_of(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def test_everything_due_is_compacted_and_nothing_live_is_lost(root: Path, run: Run) -> None:
    before = {log: content(log) for log in logs_of(root)}
    size = sum(sum(regular(log).values()) for log in before)
    result = run()
    assert result.succeeded
    assert all(job.state is JobState.SUCCEEDED for job in result.jobs)
    for log, expected in before.items():
        assert content(log) == expected
        assert leftovers(log) == []
    assert sum(sum(regular(log).values()) for log in before) < size / 2
    again = run()
    assert again.succeeded
    assert again.jobs == ()


def test_claims_are_closed_after_the_run(root: Path, run: Run) -> None:
    run()
    for log in logs_of(root):
        assert all(claim.retired for claim in fence.read(log).jobs.values())


def test_corrupt_segment_is_named_and_its_siblings_are_compacted(root: Path, run: Run) -> None:
    victim = root / "strided"
    segment = damage(victim)
    result = run()
    assert not result.succeeded
    (source,) = result.quarantined
    assert (source.target, source.source) == (str(victim), segment)
    compacted = {name for r in fence.read(victim).receipts for name in r.sources}
    everything = {f"{number:016d}.segment" for number in range(1, 12)}
    assert compacted == everything - {segment}
    assert (victim / segment).is_file()
    assert not (victim / segment).is_symlink()


def test_cleanup_deletes_what_is_older_than_the_grace(root: Path, run: Run) -> None:
    result = run(cleanup={"delay": "0s"})
    assert result.swept.deleted > 0
    for log in logs_of(root):
        assert not [path for path in log.glob("*.segment") if path.is_symlink()]
        assert fence.read(log).tombstones == ()
    assert run(cleanup={"delay": "1h"}).swept.deleted == 0


def test_suspended_policy_runs_nothing(root: Path, run: Run) -> None:
    result = run(suspend=True)
    assert result.jobs == ()
    assert {row.reason for row in result.plan.left_out} >= {"Suspended"}


def test_a_plan_that_needs_approval_is_carried_out_by_its_hash_only(root: Path, run: Run) -> None:
    before = {log: content(log) for log in logs_of(root)}
    for given in ({}, {"compaction.dev/approve": "0123456789abcdef"}):
        with pytest.raises(PlanNotApprovedError, match=r"run with --approve [0-9a-f]{16}$") as refused:
            run(approval="Manual", annotations=given)
    assert {log: content(log) for log in before} == before
    assert all(fence.read(log).receipts == () for log in before)
    approved = str(refused.value).rpartition(" ")[2]
    assert run(approval="Manual", annotations={"compaction.dev/approve": approved}).succeeded
    assert run(approval="Manual").jobs == ()


def test_job_limit_cuts_a_log_into_jobs_that_all_run_once(root: Path, run: Run) -> None:
    before = {log: content(log) for log in logs_of(root)}
    result = run(limits={"maxBytesPerJob": "1k"})
    assert result.succeeded
    assert len(result.jobs) > len(before)
    assert {log: content(log) for log in before} == before


def test_failed_attempts_are_repeated_with_a_larger_token(root: Path, run: Run) -> None:
    engine = ThreadEngine()
    tokens: list[tuple[str, int]] = []

    class Flaky:
        def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
            tokens.append((assignment.job_name, assignment.token))
            if assignment.token == 1:
                return JobReport(
                    token=1, outcome=ReportOutcome.FAILED, reason=JobReason.STORE_UNREADABLE, message="no space"
                )
            return SegmentRewriter(engine, holder="local").run(assignment, lease)

    result = run(runner=Flaky())
    engine.close()
    assert result.succeeded
    for job in result.jobs:
        assert [token for name, token in tokens if name == job.name] == [1, 2]
        assert [attempt.charged for attempt in job.status.attempts] == [True, False]


def test_job_that_always_fails_is_parked_and_the_others_finish(root: Path, run: Run) -> None:
    engine = ThreadEngine()

    class Broken:
        def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
            source = assignment.spec.sources.segment_log
            assert source is not None
            if source.path.endswith("runs"):
                raise ZeroDivisionError("oops")
            return SegmentRewriter(engine, holder="local").run(assignment, lease)

    result = run(runner=Broken(), limits={"maxAttempts": 1})
    engine.close()
    assert not result.succeeded
    assert {job.target for job in result.failed} == {str(root / "runs")}
    assert "ZeroDivisionError" in result.failed[0].status.attempts[-1].message


def test_interrupt_stops_before_the_next_commit(root: Path, run: Run) -> None:
    stopped = []

    class Interrupted:
        """Ctrl-C reaches the main thread while the jobs run."""

        def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
            if assignment.token == 1 and not lease.should_stop():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            wait_until(lease.should_stop)
            stopped.append(assignment.job_name)
            lease.ensure_held()
            raise AssertionError("unreachable: the lease is not held any more")

    before = {log: content(log) for log in logs_of(root)}
    with pytest.raises(KeyboardInterrupt):
        run(runner=Interrupted(), limits={"maxConcurrentJobs": 1})
    assert len(stopped) == 1
    assert {log: content(log) for log in before} == before


def test_root_that_does_not_exist(tmp_path: Path, run: Run) -> None:
    with pytest.raises(RootUnreadableError, match="does not exist"):
        run(store={"segmentLogs": {"root": str(tmp_path / "nowhere")}})


def test_dry_run_changes_nothing_and_has_a_reason_for_everything(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(policy_text(root, thresholds={"debtSegments": 12}))
    before = sorted(str(path) for path in root.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(["run", "-f", str(file), "--dry-run", "-o", "json"])
    assert end.value.code == 0
    data = json.loads(capsys.readouterr().out)
    assert sorted(str(path) for path in root.rglob("*")) == before
    assert "pyspark" not in data
    named = {(job["target"], name) for job in data["jobs"] for group in job["groups"] for name in group["sources"]}
    named |= {(job["target"], item["source"]) for job in data["jobs"] for item in job["obsolete"]}
    named |= {(item["target"], item["source"]) for item in data["leftAlone"]}
    due = {job["target"] for job in data["jobs"]}
    files = {(str(log), name) for log in logs_of(root) if str(log) in due for name in regular(log)}
    assert named >= files
    assert {row["reason"] for row in data["leftOut"]} >= {"NewestSegment", "BelowThreshold"}
    assert data["plan"]["gainBytes"] == sum(job["gainBytes"] for job in data["jobs"])


def test_two_versions_of_a_file_are_compared_without_changing_anything(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(policy_text(root))
    new.write_text(policy_text(root, thresholds={"debtSegments": 10}, trigger={"schedule": "0 2 29 2 *"}, suspend=True))
    before = sorted(str(path) for path in root.rglob("*"))

    def compare(*more: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["run", "-f", str(new), "--dry-run", "--against", str(old), *more])
        assert end.value.code == 0
        return capsys.readouterr().out

    (found,) = json.loads(compare("-o", "json"))
    assert sorted(str(path) for path in root.rglob("*")) == before
    assert [change["field"] for change in found["changes"]] == [
        "spec.suspend",
        "spec.store.segmentLogs.thresholds.debtSegments",
        "spec.trigger.schedule",
    ]
    assert (found["policy"], found["file"], found["inForce"]["begins"]["reason"]) == ("logs", str(new), "Due")
    assert found["proposed"]["begins"]["reason"] == "Suspended"
    assert found["proposed"]["begins"]["message"].count(";") == 1, "the schedule stands in the way as well"
    assert 0 < found["proposed"]["plan"]["jobs"] < found["inForce"]["plan"]["jobs"]
    gone = found["inForce"]["plan"]["gainBytes"] - found["proposed"]["plan"]["gainBytes"]
    assert sum(row["inForce"]["gainBytes"] for row in found["differences"]) == gone
    assert {row["proposed"]["reason"] for row in found["differences"]} == {"BelowThreshold"}
    shown = compare()
    assert "spec.trigger.schedule" in shown
    assert "\nProposed: spec.suspend is true; the next plan is made " in shown
    assert main(["run", "-f", str(new), "--against", str(old)]) == 2
    old.write_text("spec: [")
    assert main(["run", "-f", str(new), "--dry-run", "--against", str(old)]) == 2
    assert f"{old}: not valid YAML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("spec: [", "not valid YAML"),
        ("apiVersion: v1\nkind: ConfigMap\n", "no CompactionPolicy in it"),
        (policy_text(Path("/data"), limits={"maxAttemps": 3}), "did you mean maxAttempts"),
    ],
)
def test_wrong_file_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(InvalidManifestError):
        load_policies(text, source="x")
    assert main(["run", "-f", str(file), "--dry-run"]) == 2
    assert told in capsys.readouterr().err


def test_file_with_several_policies_needs_a_choice(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    other = policy_text(root / "runs").replace("name: logs", "name: other")
    file.write_text(policy_text(root) + "---\n" + other)
    assert main(["run", "-f", str(file), "--dry-run"]) == 2
    assert "logs, other" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["run", "-f", str(file), "--policy", "other", "--dry-run"])
    assert end.value.code == 0


@pytest.mark.spark
def test_the_command_with_spark(root: Path, tmp_path: Path) -> None:
    """A real process: receipts on stdout, the damage on stderr, exit code 1; a second run finds nothing but that."""
    segment = damage(root / "random")
    before = {log: content(log) for log in logs_of(root) if log.name != "random"}
    file = tmp_path / "policy.yaml"
    file.write_text(policy_text(root, workers={"sparkMaster": "local[2]"}))
    command = [sys.executable, "-W", "error", "-m", "compaction.cli.main", "run", "-f", str(file)]
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    first = subprocess.run(
        [*command, "-o", "yaml"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert first.returncode == 1, first.stderr
    data = yaml.safe_load(first.stdout)
    assert [(item["target"], item["source"]) for item in data["quarantined"]] == [(str(root / "random"), segment)]
    assert segment in first.stderr
    assert "Traceback" not in first.stderr
    assert {job["verified"] for job in data["jobs"]} == {"equal"}
    assert data["bytesReclaimed"] > 0
    assert data["cpuSeconds"] > 0
    assert all(job["usage"]["driverCpuSeconds"] > 0 for job in data["jobs"])
    (damaged,) = [job for job in data["jobs"] if job["state"] == "Faulty"]
    assert damaged["usage"]["executorCpuSeconds"] > 0, "what fails costs as well"
    assert {log: content(log) for log in before} == before
    table = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert table.returncode == 1
    assert "Faulty" in table.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.yaml", "ra", "tmp"]
    assert list(scratch.iterdir()) == []
