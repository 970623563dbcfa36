"""Workers and whoever launches them: the production worker loop, lease keeper and segment rewriter, without Spark.

Replaced are the heartbeat's thread, the job threads (greenlets) and the engine, which runs tasks where they are asked
for. The launcher is the machine the workers run on: it outlives every coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from compaction.api.job.job_status import JobReport
from compaction.errors import CompactionError
from compaction.kube.assignments import KubeLeasePort, WorkerIdentity
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import WorkerObservation, WorkerPhase, WorkerRef, WorkerRequest
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.worker import attempt
from compaction.worker.attempt import BudgetClient, EndReason, Granted, HeldJobLease, JobEnded, RateBudget
from compaction.worker.errors import EngineLostError
from compaction.worker.keeper import LeaseKeeper
from compaction.worker.loop import Worker
from compaction.worker.ports import LeasePort
from simulation.invariants import Invariant
from simulation.network import client_of
from simulation.processes import Inbox, Process, block_on, give_way

if TYPE_CHECKING:
    from simulation.world import SimulatedSystem

LOCK_TIMEOUT = 5.0


class SimulatedHeartbeat:
    """What `rewrite.heartbeat.Heartbeat` is to the worker: the same keeper, asked from blocking code."""

    def __init__(self, world: SimulatedSystem, process: Process, request: WorkerRequest, inbox: Inbox) -> None:
        self._process = process
        self._inbox = inbox
        identity = WorkerIdentity(request.name, "default", request.policy.name, request.lease_seconds)
        client = client_of(process, world.network, deadline=request.lease_seconds / 3)

        @asynccontextmanager
        async def connect() -> AsyncIterator[LeasePort]:
            yield KubeLeasePort(client, identity, clock=process.now)

        self._make = lambda: LeaseKeeper(
            connect,
            inbox=inbox,  # type: ignore[arg-type]
            slots=request.slots,
            lease_seconds=request.lease_seconds,
            clock=process.monotonic,
        )
        self._keeper: LeaseKeeper
        self._closed = False
        self._over = False

    def start(self) -> None:
        self._keeper = self._make()  # type: ignore[no-untyped-call]
        announced: asyncio.Future[None] = asyncio.Future(loop=self._process.loop)
        running = self._process.start(self._keeper.run(lambda: announced.set_result(None)), name="heartbeat")

        def ended(task: asyncio.Task[None]) -> None:
            self._over = True
            error = None if task.cancelled() else task.exception()
            if not announced.done():
                announced.set_exception(error or RuntimeError("the heartbeat ended"))
            elif not self._closed:
                for lease in self._keeper.held:
                    lease.lose("the heartbeat ended")
                self._inbox.put(JobEnded(EndReason.HEARTBEAT_LOST))

        running.add_done_callback(ended, context=self._process.context.copy())

        async def wait() -> None:
            await announced

        block_on(self._process, wait())

    def deliver(self, lease: HeldJobLease, report: JobReport) -> bool:
        return False if self._over else block_on(self._process, self._keeper.deliver(lease, report))

    def release(self, lease: HeldJobLease) -> None:
        if not self._over:
            block_on(self._process, self._keeper.release(lease))

    def refuse(self, why: str) -> None:
        if not self._over:
            block_on(self._process, self._keeper.refuse(why))

    def leave_if_unneeded(self) -> bool:
        return True if self._over else block_on(self._process, self._keeper.leave_if_unneeded())

    def close(self, *, leave: bool) -> None:
        if not self._closed:
            self._closed = True
            if not self._over:
                block_on(self._process, self._keeper.close(leave=leave))


class InlineEngine:
    """Implements `worker.ports.Engine`: a task runs in the job's own thread, and gives way at each system call."""

    parallelism = 2
    address = "192.0.2.1"
    """Of no machine: what tasks tell while they run would arrive in a thread that no schedule orders."""

    def __init__(self, world: SimulatedSystem, process: Process) -> None:
        self._world = world
        self._process = process
        attempt._budgets[self] = InlineBudget(self.address, clock=process.monotonic)

    def submit(self, work: Callable[[Any], Any], task: Any, *, tag: str) -> Future[Any]:
        future: Future[Any] = Future()
        moment = f"{self._process.name}/engine/{self._process.number('tasks')}"
        dice = self._world.faults.dice(f"{moment}/duration")
        give_way(dice.choice((0.0, 0.0, 0.0, dice.uniform(0.05, 1.0), dice.uniform(1.0, 12.0))))
        if self._world.faults.chance(moment, 0.01):
            future.set_exception(EngineLostError("the simulated Spark went away"))
        else:
            future.set_result(work(task))
        return future

    def cancel(self, tag: str) -> None:
        """Nothing runs on: tasks are over when `submit` returns."""


@dataclass(frozen=True, slots=True)
class InlineClient(BudgetClient):
    """Asks without a connection, which no schedule orders."""

    budget: RateBudget

    def take(self, count: int) -> float | None:
        wait = self.budget.wait_for(self.secret, count)
        return wait if wait >= 0 else None


class InlineBudget(RateBudget):
    """The budget of a simulated worker: the same bucket, by its process's clock, and nobody listens."""

    def _listen(self) -> Any:
        return SimpleNamespace(port=0, close=lambda: None)

    @contextmanager
    def joined(self, granted: Granted) -> Iterator[BudgetClient | None]:
        with super().joined(granted) as client:
            yield client and InlineClient(client.address, client.secret, client.step, self)


@dataclass
class Machine:
    """Where workers run. `records` are known until they are forgotten."""

    world: SimulatedSystem
    records: dict[str, Launched] = field(default_factory=dict)

    def of(self, process: Process) -> SimulatedLauncher:
        """The launcher as a coordinator uses it."""
        return SimulatedLauncher(self, process)

    def running(self) -> list[Process]:
        return [record.process for _, record in sorted(self.records.items()) if not record.process.dead]


@dataclass
class Launched:
    """One worker's record."""

    request: WorkerRequest
    process: Process
    started: datetime
    by: Process
    inbox: Inbox


class SimulatedLauncher:
    """Implements `launchers.base.Launcher`; like the process launcher, it knows exit codes of its own children only."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine = machine
        self._process = process

    async def launch(self, request: WorkerRequest) -> WorkerRef:
        world, machine = self._machine.world, self._machine
        await asyncio.sleep(0.01)
        if request.name in machine.records:
            raise LaunchError(f"worker {request.name} was launched before; names are used once")
        if world.faults.chance(f"{request.name}/launch", 0.04):
            raise LaunchError(f"worker {request.name} cannot be started: no more processes")
        process = world.process(request.name, machine="workers")
        inbox = Inbox(process)
        machine.records[request.name] = Launched(request, process, self._process.now(), self._process, inbox)
        world.log(process, f"launched by {self._process}")
        running, limit = machine.running(), world.limits.max_workers
        if limit is not None and len(running) > limit:
            world.fail(Invariant.WORKERS, f"{running} run, and the operator's limit is {limit}")
        process.start(_run_worker(world, process, request, inbox))
        return WorkerRef(request.name, request.policy)

    async def observe(self) -> list[WorkerObservation]:
        return [self._observation(record) for _, record in sorted(self._machine.records.items())]

    def _observation(self, record: Launched) -> WorkerObservation:
        request, code = record.request, record.process.exit_code
        phase, reason = WorkerPhase.RUNNING, ""
        if record.process.dead:
            known = record.by is self._process
            phase = (WorkerPhase.SUCCEEDED if code == 0 else WorkerPhase.FAILED) if known else WorkerPhase.LOST
            reason = f"exit code {code}" if known else "Vanished"
        return WorkerObservation(request.name, request.policy, phase, record.started, code, reason)

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        record = self._machine.records.get(ref.name)
        if record is None or record.process.dead:
            return
        record.inbox.put(JobEnded(EndReason.TERMINATED))
        ending = asyncio.get_running_loop().time() + grace
        while not record.process.dead:
            if asyncio.get_running_loop().time() >= ending:
                record.process.kill()
                return
            await asyncio.sleep(0.1)

    async def forget(self, ref: WorkerRef) -> None:
        record = self._machine.records.get(ref.name)
        if record is not None and record.process.dead:
            del self._machine.records[ref.name]


async def _run_worker(world: SimulatedSystem, process: Process, request: WorkerRequest, inbox: Inbox) -> None:
    """Spark starts, late at times or never; then the worker's main thread runs to its end."""
    dice = world.faults.dice(f"{process.name}/start")
    await asyncio.sleep(dice.uniform(1.0, 6.0))
    fault = world.faults.choose(f"{process.name}/start", {"late": 0.05, "dies": 0.05})
    if fault == "late":
        await asyncio.sleep(dice.uniform(10.0, 60.0))
    elif fault == "dies":
        process.kill(1)
        return

    def main() -> None:
        worker = Worker(
            heartbeat=SimulatedHeartbeat(world, process, request, inbox),  # type: ignore[arg-type]
            inbox=inbox,  # type: ignore[arg-type]
            runner=SegmentRewriter(InlineEngine(world, process), holder=process.name, lock_timeout=LOCK_TIMEOUT),
            slots=request.slots,
            idle_seconds=request.idle_seconds,
            clock=process.monotonic,
            start=process.thread,
        )
        try:
            code = int(worker.run())
        except CompactionError as error:
            world.log(process, f"could not be announced: {error}")
            code = 1
        process.kill(code)

    process.thread(main, "worker")
