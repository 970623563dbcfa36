"""Simulated processes on one event loop: each has clocks of its own, can be paused, and dies without a last word.

Whatever a process runs, coroutines and blocking code alike, carries the process in its context. The loop asks before
each step: the steps of a paused process wait until it continues (SIGSTOP), those of a dead one never come (SIGKILL, so
no `finally` tidies up). Blocking code runs in greenlets that give way at every system call, sleep and wait.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import greenlet

from support.clocks import VirtualTimeLoop
from support.faults.sudden_death import SuddenDeath

T = TypeVar("T")
TIMER = 1e-4
"""Seconds that a timer takes at the least."""
EPOCH = 1_800_000_000.0
PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


@dataclass(eq=False)
class Process:
    """One process of the simulated machines. `rate` and `offset` bend its clocks; `ended` resolves at its death."""

    name: str
    loop: SimulationLoop
    rate: float = 1.0
    offset: float = 0.0
    dead: bool = False
    paused: bool = False
    exit_code: int | None = None
    calls: dict[str, int] = field(default_factory=dict)
    greenlets: list[greenlet.greenlet] = field(default_factory=list)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    parked: deque[tuple[Callable[..., Any], tuple[Any, ...], Context]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.born = self.loop.time()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name

    # -- clocks ------------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Seconds since the machine's boot, by this process's clock."""
        return 1000.0 + self.loop.time() * self.rate

    def wall(self) -> float:
        """Epoch seconds, as this process's machine believes."""
        return EPOCH + self.offset + self.loop.time() * self.rate

    def now(self) -> datetime:
        """`wall` as a datetime."""
        return datetime.fromtimestamp(self.wall(), tz=UTC)

    # -- running -----------------------------------------------------------------------------------------------------

    def number(self, what: str) -> int:
        """Counts what this process does, to name a moment the same way in every run of a seed."""
        self.calls[what] = self.calls.get(what, 0) + 1
        return self.calls[what]

    def start(self, work: Coroutine[Any, Any, T], *, name: str = "main") -> asyncio.Task[T]:
        """Run a coroutine as part of this process."""
        return self.loop.create_task(work, name=f"{self.name}/{name}", context=self.context.copy())

    def thread(self, work: Callable[[], object], name: str = "thread") -> None:
        """Run blocking code as part of this process."""

        def run() -> None:
            try:
                work()
            except SuddenDeath:
                return

        made = greenlet.greenlet(run, parent=self.loop.hub)
        made.gr_context = self.context.copy()
        self.greenlets.append(made)
        self.loop.call_soon(made.switch, context=self.context.copy())

    # -- faults ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT: everything that became due meanwhile comes at once, in its order."""
        self.paused = False
        while self.parked:
            callback, args, context = self.parked.popleft()
            self.loop.call_soon(callback, *args, context=context)

    def kill(self, code: int = -9) -> None:
        """SIGKILL (or an exit without clean-up): nothing of it runs any more. Locks end with the process."""
        if self.dead:
            return
        self.dead, self.paused, self.exit_code = True, False, code
        if greenlet.getcurrent() is self.loop.hub:
            self._end()
        else:  # by its own hand: a greenlet that ends goes to the hub, not to whoever ended it
            self.loop.call_soon(self._end, context=Context())

    def _end(self) -> None:
        for item in self.greenlets:
            if not item.dead:
                with suppress(SuddenDeath):  # of one that had not begun
                    item.throw(SuddenDeath)
        if not self.ended.done():
            self.ended.set_result(None)


class SimulationLoop(VirtualTimeLoop):
    """Virtual time; steps are asked for their process; what asyncio would give to a thread runs in a greenlet."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = greenlet.getcurrent()
        self.set_task_factory(_remembered)

    def call_soon(  # type: ignore[override]  # typeshed binds the arguments to the callback's
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        return super().call_soon(self._gate, callback, args, context, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        timer: list[asyncio.TimerHandle] = []
        # No timer is exact. Else a slow clock would be waited for in ever smaller steps, and time stand still.
        when = max(when, self.time() + TIMER)
        timer.append(super().call_at(when, self._gate, callback, args, context, timer, context=context))
        return timer[0]

    def _gate(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context,
        timer: Sequence[asyncio.TimerHandle] = (),
    ) -> None:
        process = context.get(PROCESS)
        if process is not None:
            if process.dead:
                return
            if process.paused:
                process.parked.append((self._gate, (callback, args, context, timer), context))
                return
        if not timer or not timer[0].cancelled():  # one that was due in a pause may have been cancelled since
            callback(*args)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        process = PROCESS.get()
        assert process is not None, "blocking work belongs to a process"
        future: Answer[T] = Answer(process, loop=self)

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - as an executor does: it is the caller's
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        process.thread(work)
        return future


class Answer(asyncio.Future[T]):
    """What blocking work comes to. That of a dead process is asked for by nobody, errors included."""

    def __init__(self, process: Process, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.process = process


def _remembered(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """A dead process's tasks are kept: collected, they would be closed, and run their `finally` blocks after all."""
    context = options.get("context")
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    process = context.get(PROCESS) if context is not None else PROCESS.get()
    if process is not None:
        process.tasks.append(task)
    return task


def give_way(seconds: float) -> None:
    """Let everybody else run for so long (0: only those who are ready). Blocking code only; dies with its process."""
    process, current = PROCESS.get(), greenlet.getcurrent()
    if process is None or current is process.loop.hub:
        return  # the simulation itself is looking
    if process.dead:
        raise SuddenDeath
    process.loop.call_later(seconds, current.switch)
    process.loop.hub.switch()
    if process.dead:
        raise SuddenDeath


def block_on(process: Process, work: Coroutine[Any, Any, T]) -> T:
    """From blocking code: run a coroutine on the loop and wait for it."""
    current = greenlet.getcurrent()
    if process.dead:
        work.close()
        raise SuddenDeath
    task = process.start(work, name="call")
    task.add_done_callback(lambda _: current.switch(), context=process.context.copy())
    process.loop.hub.switch()
    if process.dead:
        raise SuddenDeath
    return task.result()


class Inbox:
    """`queue.SimpleQueue` of a simulated process: one reader, in blocking code."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._reader: greenlet.greenlet | None = None

    def put(self, item: Any) -> None:
        """From anywhere."""
        self._items.append(item)
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._process.loop.call_soon(reader.switch, context=self._process.context.copy())

    def get(self, timeout: float | None = None) -> Any:
        """Raises queue.Empty after `timeout` seconds."""
        if not self._items:
            self._reader = greenlet.getcurrent()
            timer = None if timeout is None else self._process.loop.call_later(max(0.0, timeout), self._wake)
            self._process.loop.hub.switch()
            if timer is not None:
                timer.cancel()
        if self._process.dead:
            raise SuddenDeath
        if not self._items:
            raise queue.Empty
        return self._items.popleft()
