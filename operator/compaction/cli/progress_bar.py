"""What a local run shows while it works."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ProgressBar:
    """Bytes copied, jobs ended; on standard error, and only when that is a terminal."""

    def __init__(self, noun: str = "jobs") -> None:
        """`noun`: what the parts of the work are called."""
        self._noun = noun
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% {task.fields[jobs]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._jobs: dict[str, tuple[int, int]] = {}
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        self._task = self._progress.add_task("scanning the store", total=None, jobs="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, what: str) -> None:
        """Change the words before the bar."""
        assert self._task is not None
        self._progress.update(self._task, description=what)

    def note(self, job: str, cost_bytes: int, percent: int) -> None:
        """A job changed (called from any thread)."""
        assert self._task is not None
        self._jobs[job] = (max(1, cost_bytes), percent)
        jobs = tuple(self._jobs.values())
        ended = sum(percent == 100 for _, percent in jobs)
        self._progress.update(
            self._task,
            total=sum(cost for cost, _ in jobs),
            completed=sum(cost * percent / 100 for cost, percent in jobs),
            jobs=f"{ended}/{len(jobs)} {self._noun}",
        )

    def clear(self, what: str) -> None:
        """Nothing is under way any more."""
        assert self._task is not None
        self._jobs.clear()
        self._progress.reset(self._task, total=None, description=what, jobs="")

    def line(self, text: str) -> None:
        """Print a line, above the bar when there is one."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
