"""The accidents of the demos: a worker dies while it has a job, and at no other time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob
from compaction.local.processes.process import ProcessId
from demos.cluster import Accident, DemoCluster, DemoObservation


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessId]:
    """A worker that only sleeps, recorded as the launcher does it."""
    records = tmp_path / "state" / "workers"
    records.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as child:
        process = ProcessId.of("w", child.pid)
        assert process is not None
        ticks = int(process.started.rpartition(":")[2])
        (records / "w.json").write_text(json.dumps({"name": "w", "pid": child.pid, "startTicks": ticks}))
        yield process
        child.kill()


def observed(state: JobState, *, worker: str = "w", succeeded: int = 4) -> DemoObservation:
    """So many jobs that have succeeded, and one in this state."""
    states = [JobState.SUCCEEDED] * succeeded + [state]
    jobs = [
        CompactionJob.from_object(
            {
                "metadata": {"name": f"job-{number}"},
                "spec": {
                    "policyRef": {"name": "p"},
                    "kind": "SegmentRewrite",
                    "sources": {"segmentLog": {"path": "/x", "obsolete": ["0000000000000001.segment"]}},
                },
                "status": {"state": item.value, "worker": worker, "fencingToken": 3},
            }
        )
        for number, item in enumerate(states)
    ]
    return DemoObservation(None, tuple(jobs), None)


def accident_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: DemoObservation) -> Accident:
    monkeypatch.setattr(DemoCluster, "look", lambda _: seen)
    return Accident(DemoCluster(tmp_path, tmp_path, "blocks"), tmp_path)


def test_a_worker_is_killed_while_it_has_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: ProcessId
) -> None:
    seen = observed(JobState.IN_PROGRESS)
    accident = accident_at(tmp_path, monkeypatch, seen)
    assert accident.happen(seen)
    assert not sleeper.alive()
    assert (accident.worker, accident.jobs) == ("w", {"job-4": 3})
    assert not accident.happen(seen)


@pytest.mark.parametrize(
    "then", [observed(JobState.SUCCEEDED), observed(JobState.IN_PROGRESS, worker="other")], ids=["done", "another's"]
)
def test_a_worker_that_has_just_ended_its_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: ProcessId, then: DemoObservation
) -> None:
    accident = accident_at(tmp_path, monkeypatch, then)
    assert not accident.happen(observed(JobState.IN_PROGRESS))
    assert sleeper.alive()
    assert accident.worker == ""
    assert Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"


def test_nobody_is_killed_before_there_was_something_to_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: ProcessId
) -> None:
    seen = observed(JobState.IN_PROGRESS, succeeded=1)
    assert not accident_at(tmp_path, monkeypatch, seen).happen(seen)
    assert sleeper.alive()
