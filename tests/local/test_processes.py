"""Processes are identified by pid and start: a stranger with the same pid is never touched."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.local.processes.process import POLL_SECONDS, ProcessId, exclusive, spawn, start_mark, wait_gone
from support.clocks import PATIENCE_SECONDS

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as child:
        yield child
        child.kill()


def test_same_pid_with_another_start_is_a_stranger(sleeper: subprocess.Popen[bytes]) -> None:
    stranger = ProcessId("etcd", sleeper.pid, started="another-boot:1")
    assert not stranger.alive()
    assert not stranger.send(signal.SIGKILL)
    stranger.stop()
    assert sleeper.poll() is None


def test_stops_what_it_names(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of("sleeper", sleeper.pid)
    assert process is not None
    assert process.alive()
    process.stop()
    assert not process.alive()
    assert sleeper.wait() == -signal.SIGTERM


def test_stubborn_process_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    source = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    source += "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", source, str(ready)]) as child:
        while not ready.exists():
            time.sleep(0.01)
        process = ProcessId.of("stubborn", child.pid)
        assert process is not None
        process.stop(patience=0.2)
        assert child.wait() == -signal.SIGKILL


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of("sleeper", sleeper.pid)
    assert process is not None
    sleeper.kill()
    # Not waited for yet: the pid still exists, the process does not.
    assert wait_gone(process, timeout=PATIENCE_SECONDS)
    assert ProcessId.of("sleeper", sleeper.pid) is None


def test_no_process_no_mark() -> None:
    assert start_mark(2**22 + 1) is None


def test_command_names_with_spaces_and_parentheses(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "600"]) as child:
        first = start_mark(child.pid)
        assert first is not None
        assert first == start_mark(child.pid)
        child.kill()


@pytest.mark.parametrize("death", ["SIGKILL", "exit"])
def test_children_die_with_their_parent(tmp_path: Path, death: str) -> None:
    """Even SIGKILL of the owner, which can run no clean-up, leaves no server behind."""
    source = (
        "import os, pathlib, signal, sys, time\n"
        "from compaction.local.processes.process import spawn\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = spawn(command, cwd=pathlib.Path('.'), log=pathlib.Path('log'))\n"
        "print(child.pid, flush=True)\n"
        f"time.sleep(600) if {death == 'SIGKILL'} else os._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        child = ProcessId.of("child", pid)
        if death == "SIGKILL":
            assert child is not None
            parent.kill()
        parent.wait()
    assert child is None or wait_gone(child, timeout=PATIENCE_SECONDS)


def test_detached_child_outlives_its_parent(tmp_path: Path) -> None:
    source = (
        "import pathlib, sys\n"
        "from compaction.local.processes.process import spawn\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = spawn(command, cwd=pathlib.Path('.'), log=pathlib.Path('log'), detached=True)\n"
        "print(child.pid, flush=True)\n"
    )
    answer = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    child = ProcessId.of("child", int(answer.stdout))
    assert child is not None
    assert os.getsid(child.pid) == child.pid
    child.stop()
    assert not child.alive()


def test_a_child_that_was_killed_is_no_zombie(tmp_path: Path) -> None:
    child = spawn(SLEEP, cwd=tmp_path, log=tmp_path / "log")
    started = ProcessId.of("child", child.pid)
    assert started is not None
    assert started.send(signal.SIGKILL)
    assert wait_gone(started, timeout=PATIENCE_SECONDS)
    assert not Path(f"/proc/{child.pid}").exists()
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_got_the_pid_of_one_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    child = spawn(SLEEP, cwd=tmp_path, log=tmp_path / "log")
    started = ProcessId.of("child", child.pid)
    assert started is not None
    gone = ProcessId("etcd", child.pid, started="another-boot:1")
    assert wait_gone(gone, timeout=PATIENCE_SECONDS)
    gone.stop()
    assert child.poll() is None
    started.stop()
    assert child.returncode == -signal.SIGTERM


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", "print('hello')"], cwd=tmp_path, log=tmp_path / "log")
    assert child.wait() == 0
    assert (tmp_path / "log").read_text() == "hello\n"


# The lock between processes: one holder, a message for those who wait, and nothing left when the holder dies.

HOLD = (
    "import pathlib, sys\n"
    "from compaction.local.processes.process import exclusive\n"
    "with exclusive(pathlib.Path(sys.argv[1]), what='a test', report=print):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_waits_for_another_process_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lines: list[str] = []
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        told = threading.Event()

        def report(line: str) -> None:
            lines.append(line)
            told.set()

        entered = threading.Event()

        def wait() -> None:
            with exclusive(path, what="building", report=report):
                entered.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert told.wait(PATIENCE_SECONDS)
        assert not entered.is_set()
        # Killed, not asked: the kernel gives the lock back.
        holder.kill()
        thread.join()
    assert entered.is_set()
    assert lines == [f"waiting for process {holder.pid}, which is busy with: a test"]


def test_what_a_holder_wrote_is_one_short_line_of_the_message(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"process 7, which is busy with: \x1b[2J\n" + b"x" * 5000 + b"\xff")
    lines: list[str] = []
    with path.open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)

        def report(line: str) -> None:
            lines.append(line)
            fcntl.flock(holder, fcntl.LOCK_UN)

        with exclusive(path, what="building", report=report):
            pass
    (line,) = lines
    assert line.startswith("waiting for process 7, which is busy with: \\x1b[2J\\nxxx")
    assert line.isprintable()
    assert len(line) < 600


def test_a_holder_that_has_not_written_its_name_yet_is_named_when_it_has(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lines: list[str] = []

    def wait() -> None:
        with exclusive(path, what="building", report=lines.append):
            pass

    with path.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(2 * POLL_SECONDS)  # it has looked, and found no name
        assert lines == []
        holder.write("process 7, which is busy with: testing")
        holder.flush()
        while not lines:
            time.sleep(0.05)
    thread.join()
    assert lines == ["waiting for process 7, which is busy with: testing"]
    assert path.read_text() == "", "who has gone is not named to those who wait for the next holder"
