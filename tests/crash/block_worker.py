"""A worker of blocks as a process, which kills or stops itself at one step: `python -m crash.block_worker`.

Its order is a JSON object on standard input, because it holds credentials; its report is printed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compaction.rewrite.blocks.job import BlockJob
from compaction.stores.blocks.store import BlockStore, BlockStoreConnection
from crash.mortal_worker import Mortal, attempt
from support.faults.index_faults import When
from support.processes.worker_ports import ThreadEngine
from support.stores.block_jobs import job_of

TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Fatal(Mortal):
    """At its step the process gets a signal: SIGKILL ends it there, after SIGSTOP it goes on when it is woken."""

    signal: int = signal.SIGKILL

    def _next(self, name: str) -> int:
        number = super()._next(name)
        if number == self.at and self.when is When.BEFORE:
            os.kill(os.getpid(), self.signal)
        return number if self.when is When.AFTER else -1

    def _stop(self, path: str) -> None:
        os.kill(os.getpid(), self.signal)

    def _end(self, connection: Any) -> None:
        os.kill(os.getpid(), self.signal)


def start(connection: BlockStoreConnection, job: BlockJob, *, at: int, when: When, sent: int) -> subprocess.Popen[str]:
    """A worker that makes one attempt; with token 1; `sent`: the signal that it gets at its step."""
    order = {
        "connection": [connection.url, connection.index_url, dict(connection.options)],
        "job": {"ids": job.blocks, "name": job.name, "tenant": job.tenant},
        "at": at,
        "when": when.value,
        "signal": int(sent),
    }
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "operator")])
    process = subprocess.Popen(
        [sys.executable, "-m", "crash.block_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order))
    process.stdin.close()
    return process


def main() -> None:
    order = json.load(sys.stdin)
    connection = BlockStoreConnection(*order["connection"])
    made = order["job"]
    job = replace(job_of(connection, made["ids"], name=made["name"]), tenant=made["tenant"])
    engine = ThreadEngine()
    index = BlockStore.open(connection).index
    fatal = Fatal(index, at=order["at"], when=When(order["when"]), signal=order["signal"])
    print(attempt(connection, job, engine, fatal).to_json())
    engine.close()


if __name__ == "__main__":
    main()
