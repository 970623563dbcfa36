"""`compactor segments debug exec` as a process: an owner of a system of logs that a test feeds, and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class OwnerProcess:
    """One history that runs."""

    process: subprocess.Popen[str]

    def send(self, op: str, **fields: Any) -> None:
        """Write an operation; its result is not waited for."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any] | None:
        """The next result; None when the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Write an operation and wait for its result, which must be a success."""
        self.send(op, **fields)
        found = self.result()
        assert found is not None
        assert found["ok"], found
        return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def owner_process(directory: Path, *options: str) -> Iterator[OwnerProcess]:
    """An owner of `directory`, killed at the end at the latest."""
    command = [sys.executable, "-m", "compaction.cli.main", "segments", "debug", "exec", str(directory), "-", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        yield OwnerProcess(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                # What a killed process did not read.
                with suppress(BrokenPipeError):
                    stream.close()
