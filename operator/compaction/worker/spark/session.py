"""One Spark application, started once and used for many jobs.

Rules:

* The driver does no rewriting: tasks run in Spark's Python worker processes, so the driver's threads (heartbeat,
  commits) keep the interpreter to themselves.
* A local master listens on loopback only and keeps all its files in one private directory.
* Nothing survives the driver: the JVM ends when its standard input closes (also when the driver is killed), its Python
  workers end with it.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Generic, Self, TypeVar

import structlog

from compaction.storage.pace import counting_bytes
from compaction.wings import SHIPPED
from compaction.worker.errors import (
    EngineLostError,
    EngineStartError,
    ExecutorsOutOfMemoryError,
    TaskCancelledError,
    TaskFailedError,
)
from compaction.worker.ports import TasksUsage
from compaction.worker.scratch import scratch_directory
from compaction.worker.spark.settings import PYTHON_ENVIRONMENT, Java, SparkSettings, find_java, spark_conf

log = structlog.get_logger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")

_OBITUARY_SECONDS: Final = 2.0


# The usage of tasks: CPU time, memory and bytes.
#
# Spark's own figures are those of JVMs, and tasks work in Python processes beside them: each task measures its process
# itself, and returns the figures with its result. A Python process of Spark runs one task at a time, so what the
# process uses between the beginning and the end of a task is the task's, threads of libraries included. A task that
# did not live to return them is not known, and then the sum of its attempt is not known either: it is never a part that
# looks like the whole.

_RESET_PEAK: Final = b"5"
"""Written to clear_refs of a process: its peak counts from now on (proc_pid_clear_refs(5))."""


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """CPU time, memory and bytes of one task. `peak_bytes`: of its process, since the task began where the system says
    it."""

    cpu_seconds: float
    peak_bytes: int | None
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Metered(Generic[Task, Result]):
    """Work of a task that also returns what it used. Pickled with the task."""

    work: Callable[[Task], Result]

    def __call__(self, task: Task) -> tuple[Result, TaskUsage]:
        with suppress(OSError):  # no Linux, or a /proc that is read only: the peak is that of the process's life
            Path("/proc/self/clear_refs").write_bytes(_RESET_PEAK)
        before = _cpu_seconds()
        with counting_bytes() as moved:
            result = self.work(task)
        used = TaskUsage(max(0.0, _cpu_seconds() - before), peak_of("self"), moved.read, moved.written)
        return result, used


def _cpu_seconds() -> float:
    """CPU time of this process and of the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_of(process: int | str) -> int | None:
    """Peak of the resident memory of a process, in bytes; of another one than `self` only where there is /proc."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if process != "self":
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class TaskLedger:
    """The usage of tasks by the tag of their attempt, for an engine. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, TasksUsage | None] = {}
        self._tags: dict[str, set[str]] = {}

    def add(self, tag: str, used: TaskUsage | None, *, driver_seconds: float) -> None:
        """A task has ended. `used`: None when it did not say; `driver_seconds`: the driver's CPU time for it."""
        attempt = tag.partition("/")[0]
        with self._lock:
            self._tags.setdefault(attempt, set()).add(tag)
            before = self._known.get(attempt, TasksUsage())
            if before is None or used is None:
                self._known[attempt] = None
                return
            peaks = [peak for peak in (before.peak_bytes, used.peak_bytes) if peak is not None]
            self._known[attempt] = replace(
                before,
                tasks=before.tasks + 1,
                cpu_seconds=before.cpu_seconds + used.cpu_seconds,
                driver_seconds=before.driver_seconds + driver_seconds,
                peak_bytes=max(peaks, default=None),
                bytes_read=before.bytes_read + used.bytes_read,
                bytes_written=before.bytes_written + used.bytes_written,
            )

    def take(self, attempt: str) -> tuple[TasksUsage | None, set[str]]:
        """Return what the tasks of an attempt that is over have used, and their tags, and forget both; None when one
        did not say.
        """
        with self._lock:
            return self._known.pop(attempt, TasksUsage()), self._tags.pop(attempt, set())


def with_jvm(used: TasksUsage, context: Any, tags: Iterable[str]) -> TasksUsage | None:
    """The usage of an attempt's tasks with what the executors' JVMs used for them; None when Spark has repeated a task
    that failed, or when Spark does not know all tasks any more.

    Args:
        context: the `pyspark.SparkContext`.

    Raises:
        Py4JError, OSError: the JVM does not know the jobs any more, or does not answer.
    """
    spark = context._jsc.sc()
    # A task's result arrives before the event that has its metrics.
    spark.listenerBus().waitUntilEmpty()
    store, tracker = spark.statusStore(), spark.statusTracker()
    seconds, heap, tasks = 0.0, 0, 0
    for job in {job for tag in tags for job in tracker.getJobIdsForTag(tag)}:
        stages = store.job(job).stageIds()
        for number in range(stages.size()):
            stage = store.lastStageAttempt(stages.apply(number))
            # What failed and was repeated has worked, too, and its Python process returned no figures.
            if stage.numFailedTasks():
                return None
            tasks += 1
            seconds += stage.executorCpuTime() / 1e9
            peaks = stage.peakExecutorMetrics()
            if peaks.isDefined():
                heap = max(heap, peaks.get().getMetricValue("JVMHeapMemory"))
    if tasks < used.tasks:
        return None
    # 0 says that Spark has not looked at the heap meanwhile, and nothing about the heap.
    return replace(used, cpu_seconds=used.cpu_seconds + seconds, heap_peak_bytes=heap or None)


# The application.


class SparkEngine:
    """A running Spark application; implements `engine.Engine`. Use as a context manager. One per process at a time."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._resources = ExitStack()
        self._context: Any = None
        self._gateway: Any = None
        self._pool: ThreadPoolExecutor
        self._control: ThreadPoolExecutor
        self._parallelism = 1
        self._lock = threading.Lock()
        self._active: dict[str, set[Future[Any]]] = {}
        self._cancelled: set[str] = set()
        self._ledger = TaskLedger()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def parallelism(self) -> int:
        """See `engine.Engine`."""
        return self._parallelism

    @property
    def address(self) -> str:
        """See `engine.Engine`: where executors find the driver."""
        return str(self._context.getConf().get("spark.driver.host"))

    @property
    def context(self) -> Any:
        """The `pyspark.SparkContext`, for rewrites that need more than independent tasks."""
        return self._context

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of the JVM."""
        return () if self._gateway is None else (self._gateway.proc.pid,)

    def start(self) -> None:
        """Start the JVM and one trivial task, so that the first job finds everything warm.

        Raises:
            JavaError: no usable Java.
            EngineStartError: Spark did not start; names where its output is.
        """
        if self._is_alive():
            raise EngineStartError("Spark is already running in this process")
        java = find_java()
        logging.getLogger("py4j").setLevel(logging.WARNING)  # else it tells of each connection it closes
        with ExitStack() as resources:
            scratch = resources.enter_context(scratch_directory(self._settings.scratch_parent))
            self._start_context(scratch, java, resources)
            resources.callback(self._stop_context)
            self._parallelism = max(1, self._context.defaultParallelism)
            self._pool = resources.enter_context(
                ThreadPoolExecutor(max_workers=self._parallelism * self._settings.jobs, thread_name_prefix="spark-task")
            )
            self._control = resources.enter_context(ThreadPoolExecutor(1, thread_name_prefix="spark-control"))
            self._warm_up()
            self._resources = resources.pop_all()
        log.info("spark is up", master=self._settings.master, parallelism=self._parallelism, java=str(java.home))

    def stop(self) -> None:
        """End the application, its JVM and its files. Repeating is harmless."""
        with self._lock:
            tags = list(self._active)
        for tag in tags:
            self.cancel(tag)
        self._resources.close()

    def submit(self, work: Callable[[Task], Result], task: Task, *, tag: str) -> Future[Result]:
        """See `engine.Engine`."""
        future = self._pool.submit(self._run, work, task, tag)
        with self._lock:
            self._active.setdefault(tag, set()).add(future)
        future.add_done_callback(lambda done: self._forget(tag, done))
        return future

    def cancel(self, tag: str) -> None:
        """See `engine.Engine`."""
        with self._lock:
            futures = set(self._active.get(tag, ()))
            if not futures:
                return
            self._cancelled.add(tag)
        for future in futures:
            future.cancel()
        # Again and again: a task may be on its way into Spark just now, unknown to it yet.
        while any(not future.done() for future in futures) and self._is_alive():
            self._control.submit(self._cancel_in_spark, tag).result()
            wait(futures, timeout=0.3)

    def usage(self, tag: str) -> TasksUsage | None:
        """See `engine.Engine`: of the Python processes and of the executors' JVMs."""
        from py4j.protocol import Py4JError

        used, tags = self._ledger.take(tag)
        if used is None or not used.tasks:
            return used
        try:
            return with_jvm(used, self._context, tags)
        except (Py4JError, OSError) as error:
            log.warning("what the tasks used is not known", tag=tag, error=_first_lines(error))
            return None

    @property
    def driver_peak_bytes(self) -> int | None:
        """See `engine.Engine`: this process and its JVM, each at its peak."""
        peaks = [peak_of("self"), *map(peak_of, self.pids)]
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if len(known) == len(peaks) else None

    # --- tasks ---

    def _run(self, work: Callable[[Task], Result], task: Task, tag: str) -> Result:
        """In a thread of the pool: one Spark job of one task."""
        from py4j.protocol import Py4JError, Py4JJavaError
        from pyspark.errors import PySparkException

        if tag in self._cancelled:
            raise TaskCancelledError(f"{tag}: cancelled before it began")
        began, used = time.thread_time(), None
        try:
            self._context.setInterruptOnCancel(True)
            self._context.addJobTag(tag)
            try:
                found = self._context.parallelize([task], 1).map(Metered(work)).collect()
                result, used = found[0]
                return result  # type: ignore[no-any-return]
            finally:
                self._context.removeJobTag(tag)
        except (Py4JJavaError, PySparkException) as error:
            # The second where a SparkSession lives in this process: it makes PySpark translate the JVM's errors.
            if tag in self._cancelled:
                raise TaskCancelledError(f"{tag}: cancelled") from error
            if not self._is_alive():
                raise EngineLostError(f"{tag}: {self._obituary()}") from error
            if _killed_for_memory(error):
                raise ExecutorsOutOfMemoryError(
                    f"{tag}: executors that ran a task of it were killed for using more memory than they have "
                    "(OOMKilled): raise spec.workers.executor.memory, or executor.maxMemory, up to which the next ones "
                    "get twice as much, or lower executor.cores"
                ) from error
            raise TaskFailedError(f"{tag}: {_first_lines(error)}") from error
        except (Py4JError, OSError, EOFError) as error:
            # The gateway's connection broke: the JVM is gone, or going.
            raise EngineLostError(f"{tag}: {self._obituary()}") from error
        finally:
            self._ledger.add(tag, used, driver_seconds=time.thread_time() - began)

    def _forget(self, tag: str, future: Future[Any]) -> None:
        with self._lock:
            futures = self._active.get(tag)
            if futures is not None:
                futures.discard(future)
                if not futures:
                    del self._active[tag]
                    self._cancelled.discard(tag)

    def _cancel_in_spark(self, tag: str) -> None:
        from py4j.protocol import Py4JError

        try:
            self._context.cancelJobsWithTag(tag)
        except (Py4JError, OSError) as error:
            # A JVM that is gone has no tasks; the jobs that wait for it find that out by themselves.
            log.warning("cannot cancel tasks", tag=tag, error=str(error))

    # --- the application ---

    def _start_context(self, scratch: Path, java: Java, resources: ExitStack) -> None:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway

        conf = spark_conf(self._settings, scratch, java)
        output: int | IO[bytes] = sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL
        if self._settings.log_file is not None:
            output = resources.enter_context(self._settings.log_file.open("ab"))
        with _environment(
            JAVA_HOME=str(java.home),
            PYSPARK_PYTHON=conf.get("spark.pyspark.python", sys.executable),
            TMPDIR=str(scratch),
            SPARK_LOCAL_IP="127.0.0.1" if self._settings.is_local else None,
            **PYTHON_ENVIRONMENT,
        ):
            try:
                self._gateway = launch_gateway(conf, {"stdout": output, "stderr": output})
                with _own_interrupt():
                    self._context = SparkContext(conf=conf, gateway=self._gateway)
            except (Py4JError, PySparkException, OSError, EOFError) as error:
                # The JVM may run although its SparkContext failed.
                self._stop_context()
                master, log_file = self._settings.master, self._settings.log_file
                where = f"its output is in {log_file}" if log_file else "its output is above"
                raise EngineStartError(
                    f"Spark did not start with master {master}: {_first_lines(error)}; {where}"
                ) from error

    def _warm_up(self) -> None:
        try:
            # Tried before the first job: a Python worker that lacks a package is no fault of a job.
            self._run(_import_kernels, 0, "warm-up")
        except (TaskFailedError, EngineLostError) as error:
            raise EngineStartError(
                f"Spark started, but cannot run a Python task with {self._settings.master}: {error}"
            ) from error

    def _stop_context(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext

        context, gateway = self._context, self._gateway
        self._context = self._gateway = None
        if context is not None and gateway.proc.poll() is None:
            try:
                context.stop()
            except (Py4JError, OSError) as error:
                # The JVM is ended below in any case.
                log.warning("spark did not stop by itself", error=str(error))
        if gateway is None:
            return
        gateway.shutdown(raise_exception=False)
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(self._settings.stop_seconds)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()
        # PySpark keeps one JVM per process for ever; the next application here shall get one with its own settings.
        SparkContext._gateway = SparkContext._jvm = None
        SparkContext._active_spark_context = None

    def _is_alive(self) -> bool:
        return self._gateway is not None and self._gateway.proc.poll() is None

    def _obituary(self) -> str:
        if self._gateway is not None:
            # The connection breaks a moment before the kernel has the exit code.
            with suppress(subprocess.TimeoutExpired):
                return f"Spark's JVM ended with exit code {self._gateway.proc.wait(_OBITUARY_SECONDS)}"
        return "the connection to Spark broke"


def _import_kernels(_: int) -> int:
    """A task that loads what real tasks need into the Python worker."""
    for doors in SHIPPED:
        for door in doors.preloaded:
            door.open()
    return os.getpid()


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, AttributeError, ValueError):
        # An object took the place of standard error: Python can write to it, a child process cannot inherit it.
        return False
    return True


def _first_lines(error: BaseException) -> str:
    """The telling part of an error from the JVM: Python's own traceback ends in it, Java's begins with it."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))]
    return (python[-1] if python else " ".join(lines[:2]))[:500]


def _killed_for_memory(error: BaseException) -> bool:
    """True when a task failed with its executors, which the kernel killed: Spark quotes the status of their pods."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    return "ExecutorLostFailure" in text and "OOMKilled" in text


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep the program's own handler of SIGINT: a SparkContext made in the main thread puts its own in the place."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


class _environment(ExitStack):
    """Environment variables for the block only (None = as it is)."""

    def __init__(self, **values: str | None) -> None:
        super().__init__()
        self._values = {name: value for name, value in values.items() if value is not None}

    def __enter__(self) -> Self:
        for name, value in self._values.items():
            before = os.environ.get(name)
            os.environ[name] = value
            self.callback(_restore, name, before)
        return self


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before
