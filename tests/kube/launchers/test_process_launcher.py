"""Workers as subprocesses: found again by a successor, stopped whole, never somebody else's process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import PolicyKey, WorkerObservation, WorkerPhase, WorkerRef, WorkerRequest
from compaction.kube.launchers.process import ProcessLauncher, worker_command
from support.clocks import eventually
from support.processes.operators import still_alive

POLICY = PolicyKey("ns", "p")
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def request(name: str = "p-w-1") -> WorkerRequest:
    return WorkerRequest(name=name, policy=POLICY, slots=2, idle_seconds=30, lease_seconds=15, conf={"spark.ui": "0"})


def python(code: str) -> Callable[[WorkerRequest], list[str]]:
    return lambda request: [sys.executable, "-c", code]


def observe(launcher: ProcessLauncher) -> list[WorkerObservation]:
    return asyncio.run(launcher.observe())


def pid_of(state: Path, name: str = "p-w-1") -> int:
    return int(json.loads((state / "workers" / f"{name}.json").read_text())["pid"])


def end(launcher: ProcessLauncher, name: str = "p-w-1") -> None:
    asyncio.run(launcher.stop(WorkerRef(name, POLICY), grace=5))
    eventually(lambda: observe(launcher)[0].ended, "the worker's end")


def test_the_command_is_the_worker_of_this_installation() -> None:
    command = worker_command(request())
    assert command[:4] == [sys.executable, "-m", "compaction.cli.main", "worker"]
    assert command[4:] == [
        "--namespace", "ns", "--policy", "p", "--name", "p-w-1", "--slots", "2", "--idle-seconds", "30",
        "--lease-seconds", "15", "--master", "local[*]", "--conf", "spark.ui=0",
    ]  # fmt: skip


def test_a_running_worker_is_observed_stopped_and_forgotten(state: Path) -> None:
    launcher = ProcessLauncher(state, command=python(SLEEP))
    ref = asyncio.run(launcher.launch(request()))
    (seen,) = observe(launcher)
    assert (seen.name, seen.policy, seen.phase, seen.ended) == ("p-w-1", POLICY, WorkerPhase.RUNNING, False)
    assert os.getsid(pid_of(state)) == pid_of(state), "a session of its own"
    asyncio.run(launcher.forget(ref))
    assert len(observe(launcher)) == 1, "a running worker is not forgotten"
    end(launcher)
    (seen,) = observe(launcher)
    assert (seen.phase, seen.exit_code, seen.reason) == (WorkerPhase.FAILED, -15, "KilledSIGTERM")
    asyncio.run(launcher.forget(ref))
    assert observe(launcher) == []
    assert (state / "workers" / "p-w-1.log").exists()


def test_a_worker_that_ends_by_itself_succeeded(state: Path) -> None:
    launcher = ProcessLauncher(state, command=python("print('bye')"))
    asyncio.run(launcher.launch(request()))
    eventually(lambda: observe(launcher)[0].ended, "the worker's end")
    (seen,) = observe(launcher)
    assert (seen.phase, seen.exit_code, seen.message) == (WorkerPhase.SUCCEEDED, 0, "")


def test_a_crash_is_reported_with_its_last_line(state: Path) -> None:
    code = "import sys; [print('line', n) for n in range(100)]; sys.exit('no JAVA_HOME')"
    launcher = ProcessLauncher(state, command=python(code))
    asyncio.run(launcher.launch(request()))
    eventually(lambda: observe(launcher)[0].ended, "the worker's end")
    (seen,) = observe(launcher)
    assert (seen.phase, seen.exit_code, seen.reason) == (WorkerPhase.FAILED, 1, "Failed")
    assert seen.message == "exit code 1: no JAVA_HOME"


def test_a_name_is_used_once(state: Path) -> None:
    launcher = ProcessLauncher(state, command=python(SLEEP))
    asyncio.run(launcher.launch(request()))
    with pytest.raises(LaunchError, match="p-w-1"):
        asyncio.run(launcher.launch(request()))
    end(launcher)


def test_a_program_that_is_not_there_is_an_error_and_leaves_the_name_free(state: Path) -> None:
    launcher = ProcessLauncher(state, command=lambda request: ["/nowhere/python"])
    with pytest.raises(LaunchError, match="p-w-1 cannot be started"):
        asyncio.run(launcher.launch(request()))
    assert observe(launcher) == []


def test_stopping_takes_the_whole_session_after_the_grace(state: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); print(child.pid, flush=True); time.sleep(600)"
    )
    launcher = ProcessLauncher(state, command=python(stubborn))
    asyncio.run(launcher.launch(request()))
    log = state / "workers" / "p-w-1.log"
    eventually(lambda: "up" in log.read_text(), "the grandchild")
    grandchild = psutil.Process(int(log.read_text().split()[0]))
    asyncio.run(launcher.stop(WorkerRef("p-w-1", POLICY), grace=0.2))
    eventually(lambda: observe(launcher)[0].ended, "the worker's end")
    assert observe(launcher)[0].reason == "KilledSIGKILL"
    assert still_alive([grandchild], seconds=60) == []


def test_a_worker_survives_its_coordinator_and_a_successor_finds_and_stops_it(state: Path) -> None:
    """The coordinator is a real process that is killed."""
    code = f"""
import asyncio, os, sys, signal
from pathlib import Path
from compaction.kube.launchers.base import PolicyKey, WorkerRequest
from compaction.kube.launchers.process import ProcessLauncher
launcher = ProcessLauncher(Path({str(state)!r}), command=lambda r: [sys.executable, "-c", {SLEEP!r}])
asyncio.run(launcher.launch(WorkerRequest("p-w-1", PolicyKey("ns", "p"), 2, 30, 15)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    coordinator = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert coordinator.returncode == -signal.SIGKILL, coordinator.stderr
    successor = ProcessLauncher(state)
    (seen,) = observe(successor)
    assert (seen.name, seen.phase) == ("p-w-1", WorkerPhase.RUNNING)
    end(successor)
    assert observe(successor)[0].phase is WorkerPhase.LOST  # how it ended only its parent could know


def test_a_pid_that_was_used_again_is_neither_alive_nor_signalled(state: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        (state / "workers").mkdir()
        record = {
            "name": "p-w-1", "namespace": "ns", "policy": "p", "pid": bystander.pid, "startTicks": 1,
            "started": "2026-01-01T00:00:00+00:00", "command": [],
        }  # fmt: skip
        (state / "workers" / "p-w-1.json").write_text(json.dumps(record))
        launcher = ProcessLauncher(state)
        assert observe(launcher)[0].phase is WorkerPhase.LOST
        asyncio.run(launcher.stop(WorkerRef("p-w-1", POLICY), grace=0))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_environment_is_passed_on_purpose(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "s3cret")
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    launcher = ProcessLauncher(state, command=python(code), environment={"KUBECONFIG": "/k"})
    asyncio.run(launcher.launch(request()))
    eventually(lambda: observe(launcher)[0].ended, "the worker's end")
    environment = json.loads((state / "workers" / "p-w-1.log").read_text())
    assert "SOME_SECRET" not in environment
    assert (environment["JAVA_HOME"], environment["KUBECONFIG"]) == ("/opt/java", "/k")


def test_unreadable_records_are_skipped(state: Path) -> None:
    (state / "workers").mkdir()
    (state / "workers" / "p-w-9.json").touch()  # reserved by a coordinator that died before writing it
    assert observe(ProcessLauncher(state)) == []
