"""The accidents of the demos: a worker dies while it has a job, and at no other time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob
from compaction.local.processes.process import ProcessId, wait_gone
from demos.blocks.run import BLOCKS_STATUS
from demos.cluster import Accident, DemoCluster, DemoObservation
from demos.segments.run import QUARANTINED
from demos.staging.run import STAGING_STATUS
from support.processes.small_demo import COMMAND, SMALL, read_until, running_below, started_in
from support.programs import needs
from support.timing import at_depth


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


def observed(
    state: JobState, *, worker: str = "w", succeeded: int = 4, token: int = 3, reason: str = ""
) -> DemoObservation:
    """So many jobs that have succeeded, and one in this state, whose attempt ended for a reason."""
    attempt = {"token": token, "worker": worker, "startedAt": "2026-01-01T00:00:00Z", "reason": reason}
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
                "status": {"state": item.value, "worker": worker, "fencingToken": token, "attempts": [attempt]},
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


@pytest.mark.parametrize(
    ("then", "ended"),
    [
        (observed(JobState.SUCCEEDED, token=4), True),
        (observed(JobState.SUCCEEDED), False),
        (observed(JobState.IN_PROGRESS, token=4), False),
        (observed(JobState.FAULTY, token=4, reason="SourceCorrupt"), True),
        (observed(JobState.FAULTY, token=4, reason="StoreUnreadable"), False),
    ],
)
def test_the_job_of_a_killed_worker_is_done_when_the_next_one_brings_it_to_its_end(
    tmp_path: Path, then: DemoObservation, ended: bool
) -> None:
    """Which may be that it names the source that the demo has damaged."""
    accident = Accident(DemoCluster(tmp_path, tmp_path, "blocks"), tmp_path, worker="w", jobs={"job-4": 3})
    assert accident.survived(then) == (("job-4",) if ended else ())


# A demo that is interrupted stops everything that it has started, whatever that is: one end (`cli/errors`) and one
# record of what runs serve all of them, so a short run tries the demo that has most to stop.


@dataclass(frozen=True, slots=True)
class Middle:
    """A demo's middle: the line that says it is there, and how many processes it has started by then."""

    store: str
    line: str
    started: int
    interruption: signal.Signals


# Writers and reader are at work, and a worker has a job; secrets are written, and a database runs.
BLOCKS = Middle("blocks", "InProgress", 6, signal.SIGINT)
# Keys are written and read: the control plane, replicas, and the owners of the logs.
SEGMENTS = Middle("segments", "a reader reads them", 7, signal.SIGTERM)
# The reader is at work, and a first pin is named.
CATALOG = Middle("catalog", "MissingParticipant", 7, signal.SIGINT)


@pytest.mark.apiserver
@pytest.mark.spark
@pytest.mark.usefixtures("binaries")
# Else a demo that waits for this program, and for what is built under the same lock, uses up the time limit.
@needs("versitygw")
@pytest.mark.parametrize(
    "middle", at_depth(short=[BLOCKS], deep=[BLOCKS, SEGMENTS, CATALOG]), ids=lambda middle: middle.store
)
def test_in_the_middle_it_stops_everything(middle: Middle, directory: Path) -> None:
    command = [*at_depth(short=SMALL, deep=COMMAND), "--store", middle.store, "--directory", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        seen = read_until(demo, middle.line)
        started, servers = started_in(directory), directory / "servers" / "postgres"
        database = servers.readlink() if servers.is_symlink() else None
        assert len(started) == middle.started, seen
        assert (database is not None) is (middle is BLOCKS)
        os.kill(demo.pid, middle.interruption)
        rest = demo.stdout.read()
        assert demo.wait() == 130, rest
    assert all(wait_gone(process, timeout=1) for process in started)
    assert database is None or not database.exists()
    assert running_below(directory) == []
    assert list(directory.rglob("*.secrets")) == []


# What the demos print of a policy with kubectl is in the CRD: kubectl prints nothing for a field that is not.

CRD = Path(__file__).parents[2] / "crds" / "compaction.dev_compactionpolicies.yaml"
_RANGE = re.compile(r"\{range \.([\w.]+)\[\*\]\}(.*?)\{end\}", re.ASCII)
_FIELD = re.compile(r"\{\.([\w.]+)\}", re.ASCII)


def at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of a field; KeyError when there is none."""
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


@pytest.mark.parametrize("template", [BLOCKS_STATUS, QUARANTINED, STAGING_STATUS])
def test_each_field_of_a_template_is_in_the_crd(template: str) -> None:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    found = 0
    for path, inner in _RANGE.findall(template):
        item = at(schema, path)["items"]
        found += len([at(item, field) for field in _FIELD.findall(inner)])
    found += len([at(schema, field) for field in _FIELD.findall(_RANGE.sub("", template))])
    assert found >= 2
