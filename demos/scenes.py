"""Scenes of a demo: a table that redraws itself, and where no password may be seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from compaction.api.enums import ConditionType, JobState
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import format_age
from compaction.local.processes.process import ProcessId
from compaction.local.tenants import Check
from demos.cluster import DONE, DemoCluster, DemoObservation

# Places in which a password must not be: objects of the API server, logs, arguments and variables of operator and
# workers.

KINDS: Final = "cpol,cjob,ccat,lease,events"


def find_leaks(
    secrets: Iterable[str], cluster: DemoCluster, directory: Path, processes: Iterable[ProcessId]
) -> list[str]:
    """The places where one of the secrets was found; `directory`: of the operator's and its workers' logs."""
    wanted = [secret.encode() for secret in secrets]
    return [place for place, text in _places(cluster, directory, processes) if any(item in text for item in wanted)]


def _places(cluster: DemoCluster, directory: Path, processes: Iterable[ProcessId]) -> Iterator[tuple[str, bytes]]:
    yield f"kubectl get {KINDS}", cluster.run("get", KINDS, "-o", "json").encode()
    for path in sorted(directory.rglob("*.log")):
        yield str(path), path.read_bytes()
    for process in processes:
        for name in ("cmdline", "environ"):
            file = Path("/proc", str(process.pid), name)
            if process.alive() and file.exists():
                yield f"{name} of {process.name}", file.read_bytes()


# The screen of a demo while it runs: a table that redraws itself on a terminal, a line per change elsewhere.

STYLES: Final = {
    JobState.UNASSIGNED: "dim",
    JobState.IN_PROGRESS: "cyan",
    JobState.ABANDONED: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAULTY: "red",
}
MISSING: Final = "-"


T = TypeVar("T")


@contextmanager
def live_or_plain(console: Console, live: Callable[[Live], T], plain: Callable[[Console], T]) -> Iterator[T]:
    """The view for this console: redrawn in place on a terminal, plain lines in a pipe or a log."""
    if not console.is_terminal:
        yield plain(console)
        return
    with Live(console=console, refresh_per_second=4) as display:
        yield live(display)


POLICY_COLUMNS: Final = ("STORE", "READY", "DEBT", "OLDEST", "ACTIVE", "QUEUED", "FAULTY", "WORKERS", "ETA")


def policy_cells(policy: CompactionPolicy | None) -> tuple[str, ...]:
    if policy is None:
        return (MISSING,) * len(POLICY_COLUMNS)
    status = policy.status
    ready = next((item for item in status.conditions if item.type == ConditionType.READY), None)
    return (
        status.store or MISSING,
        MISSING if ready is None else f"{ready.status} ({ready.reason})",
        MISSING if status.debt is None else status.debt.summary,
        _age(status.oldest_debt_at),
        str(status.active),
        str(status.queued),
        str(status.faulty),
        str(status.workers),
        status.eta or MISSING,
    )


def policy_table(policy: CompactionPolicy | None) -> Table:
    table = table_of(POLICY_COLUMNS)
    table.add_row(*policy_cells(policy))
    return table


def checks_table(checks: Sequence[Check]) -> Table:
    table = table_of(("", "CLAIM", "FACT"))
    for check in checks:
        table.add_row(
            Text("yes", style="green") if check.holds else Text("NO", style="bold red"), check.claim, check.fact
        )
    return table


def table_of(columns: Sequence[str]) -> Table:
    """An empty table, as all tables of the demos look."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _age(moment: datetime | None) -> str:
    return MISSING if moment is None else format_age((datetime.now(UTC) - moment).total_seconds())


# The screen of a store that is written while it is compacted: policy, store, newest jobs, reader.

SHOWN_JOBS: Final = 12
PLAIN_SECONDS: Final = 3.0
"""So often at most a line about the store, which changes all the time."""
STATE_COLUMNS: Final = ("STATE", "PROGRESS", "WORKER", "TOKEN")
"""With which the columns of jobs end, after those of the kind."""


class Scene(Protocol):
    """All that is seen at one moment. `job_columns`: what a kind shows of a job, before `STATE_COLUMNS`."""

    @property
    def seen(self) -> DemoObservation: ...

    @property
    def job_columns(self) -> Sequence[str]: ...

    def job_cells(self, job: CompactionJob) -> tuple[str, ...]:
        """One for each of `job_columns`."""
        ...

    def reader_line(self) -> str:
        """How it goes for the reader."""
        ...

    def store_line(self) -> str:
        """The store in one line."""
        ...

    def store_table(self) -> Table:
        """The store by its parts."""
        ...


class SceneView(Protocol):
    """Shows one scene after the other, and what is said in between."""

    def show(self, scene: Scene) -> None: ...

    def say(self, line: str) -> None: ...


def watching(console: Console) -> AbstractContextManager[SceneView]:
    """See `live_or_plain`."""
    return live_or_plain(console, LiveScenes, PlainScenes)


class LiveScenes:
    """Everything, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._started = time.monotonic()

    def show(self, scene: Scene) -> None:
        age = format_age(time.monotonic() - self._started)
        caption = f"{age}   leader: {scene.seen.leader or MISSING}   {scene.reader_line()}"
        parts: list[RenderableType] = [
            Text(caption, style="dim"),
            policy_table(scene.seen.policy),
            scene.store_table(),
            jobs_table(scene),
        ]
        self._live.update(Group(*parts))

    def say(self, line: str) -> None:
        self._live.console.print(f"> {line}", style="dim", highlight=False)


class PlainScenes:
    """A line for each change of a job's state, and of the numbers of policy and store, the latter now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._told = 0.0
        self._last: tuple[str, ...] = ()
        self._states: dict[str, JobState] = {}

    def show(self, scene: Scene) -> None:
        for job in scene.seen.jobs:
            if self._states.get(job.metadata.name) is not job.status.state:
                self._states[job.metadata.name] = job.status.state
                self.say(f"job {' '.join(cell for cell in all_cells(scene, job) if cell != MISSING)}")
        cells = policy_cells(scene.seen.policy)
        told = tuple(cell for name, cell in zip(POLICY_COLUMNS, cells, strict=True) if name != "OLDEST")
        if told != self._last and time.monotonic() - self._told > PLAIN_SECONDS:
            self._last, self._told = told, time.monotonic()
            pairs = zip(POLICY_COLUMNS, cells, strict=True)
            self.say("policy " + "  ".join(f"{name.lower()} {cell}" for name, cell in pairs))
            self.say(f"store  {scene.store_line()}; {scene.reader_line()}")

    def say(self, line: str) -> None:
        self._console.print(f"{int(time.monotonic() - self._started):4d} s  {line}", highlight=False, soft_wrap=True)


def newest(jobs: Sequence[CompactionJob]) -> Sequence[CompactionJob]:
    """As many as fit: those that run or wait, and the newest of the others, by age."""
    running = [job for job in jobs if job.status.state not in DONE][:SHOWN_JOBS]
    ended = [job for job in jobs if job.status.state in DONE]
    return [*ended[max(0, len(ended) + len(running) - SHOWN_JOBS) :], *running]


def all_cells(scene: Scene, job: CompactionJob) -> tuple[str, ...]:
    """Those of the kind and of `STATE_COLUMNS`, behind the name."""
    status = job.status
    return (
        job.metadata.name,
        *scene.job_cells(job),
        status.state.value,
        status.progress or MISSING,
        status.worker or MISSING,
        str(status.fencing_token) if status.fencing_token else MISSING,
    )


def jobs_table(scene: Scene) -> Table:
    """The newest jobs."""
    table = table_of(("JOB", *scene.job_columns, *STATE_COLUMNS))
    state = 1 + len(scene.job_columns)
    for job in newest(scene.seen.jobs):
        cells: list[RenderableType] = list(all_cells(scene, job))
        cells[state] = Text(job.status.state.value, style=STYLES[job.status.state])
        if job.status.state is JobState.IN_PROGRESS:
            cells[state + 1] = ProgressBar(total=100, completed=job.status.progress_percent or 0, width=10)
        table.add_row(*cells)
    return table
