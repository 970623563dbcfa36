"""One schedule: two coordinators, their workers, an API server and a store, and everything that happens to them.

`simulate(seed)` builds the world from the seed alone, lets it run through its faults, then in peace, and says what was
violated. Everything is on one thread and in virtual time; the same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import structlog

from compaction.api.base import format_timestamp, timestamp_from_epoch
from compaction.api.policy import values
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.reconcile.observations import OperatorLimits
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.term import StopRequest
from compaction.registry import kind_named
from compaction.segments.format.names import job_key
from compaction.segments.generate import corrupt_entry, generate_log
from simulation.api_server import ApiServer, Change, Obj
from simulation.coordinator import Candidate, replica
from simulation.disk import Disk
from simulation.invariants import ApiWatch, Invariant, StoreWatch, leaders, leftovers, unfinished
from simulation.network import Network, Numbers, simulated_time
from simulation.owner import Owner
from simulation.processes import EPOCH, PROCESS, Answer, Process, SimulationLoop
from simulation.schedule import Faults, happenings, run_happening
from simulation.workers import Machine

OPEN_ADAPTER = kind_named("SegmentLogs").doors.adapter.open()
"""Loaded before the first run: what is read and timed while a module loads would be in its trace."""
ROOT = Path("/proc/self/cwd/logs")
"""The same path in every run: job names are made of it. The directory behind it is this run's own."""
PEACE = 900.0
"""Simulated seconds after the last fault within which everything must have come to rest."""
LOOK = 5.0
LIMITS = (*[OperatorLimits()] * 7, OperatorLimits(1), OperatorLimits(1, 10**9), OperatorLimits(2, 400))


@dataclass(frozen=True, slots=True)
class Violation:
    """What did not hold, when."""

    invariant: Invariant
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a schedule. `digest` is of the whole trace; `struck` are the faults that struck, in order."""

    seed: int
    violation: Violation | None
    digest: str
    struck: tuple[str, ...]
    trace: tuple[str, ...]
    seconds: float
    stats: dict[str, int]


class SimulatedSystem:
    """Everything there is. Made inside its loop."""

    def __init__(self, loop: SimulationLoop, seed: int, allowed: frozenset[str] | None) -> None:
        self.loop = loop
        self.seed = seed
        self.faults = Faults(seed, allowed)
        self.dice = self.faults.dice("world")
        self.trace: list[str] = []
        self.violation: Violation | None = None
        self.over = loop.create_future()
        self.clocks: dict[str, tuple[float, float]] = {}
        self.processes: list[Process] = []
        self.candidates: dict[Process, Candidate] = {}
        self.stops: dict[Process, StopRequest] = {}
        self.metrics = Metrics()
        self.known_jobs: set[str] = set()
        self.reported: set[str] = set()
        self.assigned: set[tuple[str, int]] = set()
        self.touched: dict[str, int] = {}
        self.attempts: dict[str, int] = {}
        self.server = ApiServer(self._creation_time, garbage_collector=self.dice.random() < 0.5)
        self.api = ApiWatch(self)
        self.store = StoreWatch(self)
        self.trouble = self.dice.choice((0.0, 0.5, 1.0, 1.0, 2.0))
        self.network = Network(self.server, self.faults, self.trouble, log=self.log, written=self.api.written)
        disk_trouble = self.dice.choice((0.0, 0.5, 1.0, 2.0))
        self.owner = Owner(self)
        self.disk = Disk(
            self.faults, self.store, self.kill, self.log, loop.time, disk_trouble,
            fragile=self.owner.fragile, died=self.owner.died,
        )  # fmt: skip
        self.launcher = Machine(self)
        self.server.listeners.append(self._changed)
        loop.set_exception_handler(self._unforeseen)
        self.limits = self.faults.dice("limits").choice(LIMITS)
        self.grace = float(self.dice.choice((0, 3, 8, 15)))

    # -- set-up ------------------------------------------------------------------------------------------------------

    def process(self, name: str, *, machine: str) -> Process:
        """A new process on a machine whose clock is its own."""
        if machine not in self.clocks:
            dice = self.faults.dice(f"{machine}/clock")
            self.clocks[machine] = (dice.uniform(0.98, 1.02), dice.uniform(-3.0, 3.0))
        rate, offset = self.clocks[machine]
        process = Process(name, self.loop, rate, offset)
        process.machine = machine  # type: ignore[attr-defined]
        self.processes.append(process)
        return process

    def set_clock(self, machine: str, offset: float) -> None:
        """Somebody sets a machine's wall clock."""
        rate, _ = self.clocks[machine]
        self.clocks[machine] = (rate, offset)
        for process in self.processes:
            if getattr(process, "machine", "") == machine:
                process.offset = offset

    def make_logs(self, numbers: Numbers) -> None:
        """Copies of templates, which an earlier schedule may have made: only what is seen after that is numbered."""
        templates = []
        for _ in range(self.dice.choice((1, 2, 2, 3))):
            pattern = self.dice.choice(("strided", "runs", "random", "overwritten"))
            segments, entries = self.dice.choice((4, 5, 6, 8)), self.dice.choice((8, 12))
            damaged = self.dice.random() < 0.08
            templates.append(_template(pattern, segments, entries, self.dice.choice((0.1, 0.25)), damaged))
        numbers.begin()
        for number, template in enumerate(templates):
            path = ROOT / f"log-{number}"
            shutil.copytree(template, path, copy_function=shutil.copyfile)
            for found in [path, *path.rglob("*")]:
                os.utime(found, (EPOCH - 100.0, EPOCH - 100.0))
            self.store.add(path)

    def make_policy(self) -> None:
        dice = self.dice
        spec = {
            "store": {"segmentLogs": {"root": str(ROOT), "maxSourcesPerGroup": dice.choice((2, 3, 8))}},
            "trigger": {"interval": dice.choice(("5s", "10s", "20s"))},
            "lease": {"durationSeconds": dice.choice((6, 10, 15))},
            "cleanup": {"delay": f"{self.grace:.0f}s"},
            "limits": {"maxConcurrentJobs": dice.choice((1, 2, 4)), "maxBytesPerJob": dice.choice(("600", "1Gi"))},
            "workers": {
                "max": dice.choice((1, 2)),
                "slots": dice.choice((1, 2)),
                "idleSeconds": dice.choice((3, 8, 15)),
            },
            "successfulJobsHistoryLimit": dice.choice((0, 2, 10)),
            "failedJobsHistoryLimit": dice.choice((1, 10)),
        }
        body = {"metadata": {"name": "logs", "namespace": "default", "uid": "x"}, "spec": spec}
        full = CompactionPolicy.from_object(body).to_object()
        metadata = {"name": "logs", "namespace": "default"}
        self.server._create("compactionpolicies", {**full, "metadata": metadata})

    # -- what the parts tell -----------------------------------------------------------------------------------------

    def log(self, process: Process | None, text: str) -> None:
        self.trace.append(f"{self.loop.time():9.3f} {process.name if process else 'world':20} {text}")
        leaders(self)

    def fail(self, invariant: Invariant, message: str) -> None:
        """The first violation ends the schedule."""
        if self.violation is None:
            self.violation = Violation(invariant, message, self.loop.time())
            self.log(None, f"VIOLATED: {invariant}: {message}")
            if not self.over.done():
                self.over.set_result(None)

    def _unforeseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, future = context.get("exception"), context.get("future")
        if isinstance(future, Answer) and future.process.dead:
            return
        if not self.over.done():
            self.fail(Invariant.FORESEEN, f"{context.get('message')}: {error!r}")

    def kill(self, process: Process) -> None:
        process.kill()

    def elected(self, process: Process, candidate: Candidate) -> None:
        self.log(process, f"elected, epoch {candidate.epoch}")

    def _creation_time(self) -> str:
        return format_timestamp(timestamp_from_epoch(EPOCH + int(self.loop.time())))

    def _changed(self, change: Change) -> None:
        if change.plural == "compactionjobs" and change.new is not None:
            self._job_changed(change.new, change.old)
        self.api.changed(change)
        if change.plural != "events":
            obj = change.new or change.old
            assert obj is not None
            said = f"{change.type} {change.plural}/{obj['metadata']['name']}"
            state = (obj.get("status") or {}).get("state") if change.plural == "compactionjobs" else None
            self.log(None, f"{said} {state or ''}".rstrip())

    def _job_changed(self, job: Obj, old: Obj | None) -> None:
        name, status = job["metadata"]["name"], job.get("status") or {}
        self.known_jobs.add(name)
        self.attempts[name] = max(self.attempts.get(name, 0), len(status.get("attempts") or ()))
        if status.get("waiting") and status["waiting"] != ((old or {}).get("status") or {}).get("waiting"):
            self.touched[name] = self.touched.get(name, 0) + 1  # a refused claim is said in the job's own status

    def touch(self, name: str) -> None:
        """Somebody disturbed a job: it may take so many writes more."""
        self.touched[name] = self.touched.get(name, 0) + 4

    def disturbed(self, job: str) -> int:
        return self.touched.get(job, 0)

    def attempts_of(self, job: str) -> int:
        return self.attempts.get(job, 0)

    def job_of(self, key: str) -> str:
        return next((name for name in sorted(self.known_jobs) if job_key(name) == key), key)

    def holder_of(self, key: str, token: int) -> Process | None:
        """The worker to which this attempt was given, as the API server has it now."""
        lease = self.server.get("leases", self.job_of(key))
        if lease is None or lease["spec"].get("leaseTransitions") != token:
            return None
        record = self.launcher.records.get(lease["spec"].get("holderIdentity") or "")
        return record.process if record is not None else None

    def is_held(self, key: str, token: int) -> bool:
        job = self.server.get("compactionjobs", self.job_of(key)) or {}
        status = job.get("status") or {}
        return status.get("state") == "InProgress" and status.get("fencingToken") == token

    # -- the run -----------------------------------------------------------------------------------------------------

    async def run(self, numbers: Numbers) -> None:
        """Faults, then peace, then rest."""
        self.make_logs(numbers)
        self.make_policy()
        replicas = [asyncio.create_task(replica(self, number)) for number in (1, 2)]
        for number in (1, 2):
            self.clocks.setdefault(f"machine-{number}", (1.0, 0.0))
        self.owner.plan()
        war = [asyncio.create_task(run_happening(self, happening)) for happening in happenings(self)]
        fighting = asyncio.gather(self._war(), *war)
        await asyncio.wait([fighting, self.over], return_when=asyncio.FIRST_COMPLETED)
        if self.violation is None:
            self.faults.active = False
            self.log(None, "peace")
            await self._until_rest()
        if self.violation is None:
            for book in self.store.logs.values():
                self.store.look(None, book, "the end")
        fighting.cancel()
        for task in (*replicas, *war):
            task.cancel()
        await asyncio.gather(*replicas, *war, fighting, return_exceptions=True)
        for process in self.processes:
            process.kill()

    async def _war(self) -> None:
        await asyncio.sleep(self.dice.uniform(20.0, 50.0))

    async def _until_rest(self) -> None:
        deadline = self.loop.time() + PEACE
        calm = 0
        while self.violation is None:
            restless = [*unfinished(self), *leftovers(self)]
            calm = 0 if restless else calm + 1
            if calm >= 3:
                return
            if self.loop.time() > deadline:
                ends = unfinished(self)
                self.fail(Invariant.ENDS if ends else Invariant.LEFTOVERS, "; ".join((ends or restless)[:6]))
                return
            await asyncio.wait([self.over], timeout=LOOK)


@lru_cache
def _templates() -> tempfile.TemporaryDirectory[str]:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="compaction-simulation-", dir=base)


@lru_cache
def _template(pattern: str, segments: int, entries: int, live: float, damaged: bool) -> Path:
    path = Path(_templates().name) / f"{pattern}-{segments}-{entries}-{live}-{damaged}"
    generate_log(
        path, pattern=pattern, segments=segments, entries_per_segment=entries, payload_bytes=32, live_fraction=live,
        sync=False,
    )  # fmt: skip
    if damaged:
        content = sorted(readable_indexes(path))
        with suppress(Exception):
            corrupt_entry(path, segment=2, record=content[0] % entries)
    return path


def readable_indexes(path: Path) -> list[int]:
    from simulation.invariants import readable

    return list(readable(path)[0])


@contextmanager
def _captured_logs(world: list[SimulatedSystem]) -> Iterator[None]:
    """What the code logs becomes part of the trace; an error with a traceback is one that nobody foresaw."""

    def collect(logger: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        if world and not world[0].over.done():
            process = PROCESS.get()
            one = world[0]
            error = event.pop("exc_info", None)
            if method in ("warning", "error", "exception"):
                said = {k: v for k, v in event.items() if k in ("job", "token", "error", "why", "reason", "worker")}
                # The pid is that of this process, which no seed chooses.
                one.log(process, re.sub(r"pid \d+ on [^,)]*", "pid", f"log: {event.get('event')} {said}")[:300])
            if method == "exception" or isinstance(error, BaseException):
                one.fail(Invariant.FORESEEN, f"{process}: {event.get('event')}: {event.get('error')} {error!r}"[:500])
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[collect], wrapper_class=structlog.BoundLogger, cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def simulate(seed: int, *, allowed: frozenset[str] | None = None) -> Outcome:
    """Run one schedule from beginning to end. `allowed`: the only faults that may strike (see `faults`)."""
    base = Path(_templates().name)
    home = Path(tempfile.mkdtemp(prefix="run-", dir=base))
    (home / "logs").mkdir()
    before = os.getcwd()
    os.chdir(home)
    gc.freeze()  # what is there already is not looked through again
    gc.disable()  # what a schedule leaves is collected at its end, not in the middle of another one
    worlds: list[SimulatedSystem] = []
    loop = SimulationLoop()

    async def main(numbers: Numbers) -> SimulatedSystem:
        world = SimulatedSystem(loop, seed, allowed)
        worlds.append(world)
        with world.disk.mounted():
            await world.run(numbers)
        return world

    try:
        # Policies of people may not have such a path: here it leads to another directory in each run.
        any_path = patch.object(values, "OF_THE_KERNEL", "$^")
        with any_path, simulated_time() as numbers, _captured_logs(worlds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                world = loop.run_until_complete(main(numbers))
            finally:
                _bury(loop, worlds)
    finally:
        gc.enable()
        os.chdir(before)
        shutil.rmtree(home, ignore_errors=True)
    digest = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()
    stats = {"checks": world.store.checks, "commits": world.store.commits.total(), "jobs": len(world.known_jobs)}
    return Outcome(
        seed, world.violation, digest, tuple(world.faults.struck), tuple(world.trace), loop.time(), stats
    )  # fmt: skip


def _bury(loop: SimulationLoop, worlds: list[SimulatedSystem]) -> None:
    """Close what dead processes left, now that it can do no harm, so that no garbage collection does it later.

    A coroutine that is closed in the middle of its clean-up protests; nobody is there any more to hear it.
    """
    tasks = [task for world in worlds for process in world.processes for task in process.tasks]
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task._log_traceback = False
        for task in tasks:
            with suppress(BaseException):
                task.get_coro().close()
        for world in worlds:
            for process in world.processes:
                process.tasks.clear()
                process.greenlets.clear()
                process.parked.clear()
        del tasks
        loop.close()
        gc.collect()
    finally:
        sys.unraisablehook = hook
