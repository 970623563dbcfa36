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
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar

import structlog

from compaction.wings import SHIPPED
from compaction.worker.errors import (
    EngineLostError,
    EngineStartError,
    ExecutorsOutOfMemoryError,
    TaskCancelledError,
    TaskFailedError,
)
from compaction.worker.scratch import scratch_directory
from compaction.worker.spark.settings import PYTHON_ENVIRONMENT, Java, SparkSettings, find_java, spark_conf

log = structlog.get_logger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")

_OBITUARY_SECONDS: Final = 2.0


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

    # --- tasks ---

    def _run(self, work: Callable[[Task], Result], task: Task, tag: str) -> Result:
        """In a thread of the pool: one Spark job of one task."""
        from py4j.protocol import Py4JError, Py4JJavaError
        from pyspark.errors import PySparkException

        if tag in self._cancelled:
            raise TaskCancelledError(f"{tag}: cancelled before it began")
        try:
            self._context.setInterruptOnCancel(True)
            self._context.addJobTag(tag)
            try:
                return self._context.parallelize([task], 1).map(work).collect()[0]  # type: ignore[no-any-return]
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
