"""What a rewrite needs from the engine that runs its tasks: Spark (spark/session.py), or a thread pool in tests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    """Runs independent tasks, each identified by the tag of the attempt it belongs to."""

    @property
    def parallelism(self) -> int:
        """How many tasks can run at the same time, at least 1."""

    @property
    def address(self) -> str:
        """Host name or address at which tasks reach this process."""

    def submit(self, work: Callable[[Task], Result], task: Task, *, tag: str) -> Future[Result]:
        """Run `work(task)` somewhere. `work` is importable by name, `task` and the result can be pickled.

        The future raises TaskCancelledError after `cancel(tag)`, EngineLostError when the engine is gone, and
        TaskFailedError when the task itself raised or its process died (ExecutorsOutOfMemoryError: for want of memory).
        """

    def cancel(self, tag: str) -> None:
        """Stop all tasks with this tag, running or not yet begun, and wait until none is left."""
