"""A worker of blocks as a process, which kills or stops itself at one step: `python -m crash.block_worker`.

Its orders are JSON on standard input, because they hold credentials; the report of one is printed, of several the exit
codes.
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

from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.store import BlockStore, BlockStoreConnection
from crash.mortal_worker import Mortal, attempt
from support.blocks.blocks import job_of
from support.faults.store_faults import When
from support.processes.worker_ports import ThreadEngine

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


def order(connection: BlockStoreConnection, job: BlockJob, *, at: int, when: When, sent: int) -> dict[str, Any]:
    """One attempt, with token 1; `sent`: the signal that the process gets at its step."""
    return {
        "connection": [connection.url, connection.index_url, dict(connection.options)],
        "job": {"ids": job.blocks, "name": job.name, "tenant": job.tenant},
        "at": at,
        "when": when.value,
        "signal": int(sent),
    }


def start(*orders: dict[str, Any]) -> subprocess.Popen[str]:
    """A worker that carries out its order; of several, one process that forks a worker for each: what it imports takes
    as long as ten attempts.
    """
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "operator")])
    process = subprocess.Popen(
        [sys.executable, "-m", "crash.block_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(orders))
    process.stdin.close()
    return process


def exit_codes(*orders: dict[str, Any]) -> list[int]:
    """Of a worker for each order, all at once, as `Popen.returncode` has them."""
    with start(*orders) as process:
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0
    codes: list[int] = json.loads(said.splitlines()[-1])
    return codes


def carry_out(order: dict[str, Any]) -> None:
    connection = BlockStoreConnection(*order["connection"])
    made = order["job"]
    job = replace(job_of(connection, made["ids"], name=made["name"]), tenant=made["tenant"])
    engine = ThreadEngine()
    index = BlockStore.open(connection).index
    fatal = Fatal(index, at=order["at"], when=When(order["when"]), signal=order["signal"])
    print(attempt(connection, job, engine, fatal).to_json(), flush=True)
    engine.close()


def forked(order: dict[str, Any]) -> int:
    """The process id of a worker that carries it out."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        carry_out(order)
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    orders = json.load(sys.stdin)
    if len(orders) == 1:
        return carry_out(orders[0])
    workers = [forked(order) for order in orders]
    return print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]))


if __name__ == "__main__":
    main()
