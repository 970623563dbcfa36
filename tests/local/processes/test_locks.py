"""The lock between processes: one holder, a message for those who wait, and nothing left when the holder dies."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time

from compaction.local.processes.process import POLL_SECONDS, exclusive

HOLD = (
    "import pathlib, sys\n"
    "from compaction.local.processes.process import exclusive\n"
    "with exclusive(pathlib.Path(sys.argv[1]), what='a test', report=print):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_waits_for_another_process_and_names_it(tmp_path):
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
        assert told.wait(30)
        assert not entered.is_set()
        # Killed, not asked: the kernel gives the lock back.
        holder.kill()
        thread.join()
    assert entered.is_set()
    assert lines == [f"waiting for process {holder.pid}, which is busy with: a test"]


def test_what_a_holder_wrote_is_one_short_line_of_the_message(tmp_path):
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


def test_a_holder_that_has_not_written_its_name_yet_is_named_when_it_has(tmp_path):
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
