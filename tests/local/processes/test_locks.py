"""The lock between processes: one holder, a message for those who wait, and nothing left when the holder dies."""

from __future__ import annotations

import subprocess
import sys
import threading

from compaction.local.processes.locks import exclusive

HOLD = (
    "import pathlib, sys\n"
    "from compaction.local.processes.locks import exclusive\n"
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
    assert lines == [f"waiting for process {holder.pid}, which is busy with: building"]
