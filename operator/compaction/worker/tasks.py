"""Tasks of one attempt on the engine, a few at a time, while the lease is held: alike for every kind of rewrite."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final, TypeAlias, TypeVar

from compaction.worker.engine import Engine
from compaction.worker.ports import HeldLease

Task = TypeVar("Task")
Result = TypeVar("Result")
Arrived: TypeAlias = list[tuple[int, Result]]
"""The number of a task in the order they were given, and what it returned."""

LOOK_SECONDS: Final = 0.25
"""How often a running job looks whether it must stop."""


def run_tasks(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, engine: Engine, lease: HeldLease, tag: str
) -> Generator[Arrived[Result]]:
    """Run `work` on each task and give what has arrived whenever something has. A task is taken from `tasks` when the
    engine has room for it. Close it (`contextlib.closing`) to end
    early: nothing runs any more when it is closed, however that came about.

    Raises LeaseLostError, JobStoppedError: the lease; EngineLostError, TaskFailedError: the engine.
    """
    waiting = enumerate(tasks)
    upcoming = next(waiting, None)
    running: dict[Future[Result], int] = {}
    try:
        while upcoming or running:
            lease.ensure_held()
            while upcoming and len(running) < engine.parallelism:
                number, task = upcoming
                upcoming = next(waiting, None)
                running[engine.submit(work, task, tag=tag)] = number
            done, _ = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            arrived = [(future.result(), running.pop(future)) for future in done]
            if arrived:
                yield [(number, result) for result, number in arrived]
    finally:
        if running:
            engine.cancel(tag)
