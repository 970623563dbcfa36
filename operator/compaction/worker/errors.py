"""The early ends of an attempt: what its worker, its Spark session or its tasks cannot do."""

from __future__ import annotations

from compaction.errors import CompactionError


class LeaseLostError(CompactionError):
    """A job's lease has another holder or token, is gone, or was not renewed in time: nothing may be committed."""


class WorkerLeaseGoneError(CompactionError):
    """The worker's own lease was deleted or taken: the worker must abort and exit."""


class StopRequestedError(CompactionError):
    """The coordinator asks the worker to stop."""


class PortUnavailableError(CompactionError):
    """The API server did not answer, or not usefully; whether the request took effect is unknown."""


class JobStoppedError(CompactionError):
    """A job was stopped before its next commit because its worker was asked to stop."""


class EngineStartError(CompactionError):
    """Spark could not be started."""


class EngineLostError(CompactionError):
    """Spark went away under a running job; the worker cannot go on."""


class TaskFailedError(CompactionError):
    """A Spark task raised something unexpected, or its process died."""


class ExecutorsOutOfMemoryError(TaskFailedError):
    """Executors that ran a task were killed for using more memory than their pods have."""


class RateBudgetError(CompactionError):
    """A task cannot ask the driver of its worker for its part of limits.bytesPerSecond."""

    def __init__(self, host: str, port: int, cause: Exception) -> None:
        super().__init__(host, port, cause)
        self.host, self.port, self.cause = host, port, cause

    def __str__(self) -> str:
        return (
            f"{self.host}:{self.port}: the worker's driver does not say how many bytes may be moved "
            f"({type(self.cause).__name__}: {self.cause}). Let executors reach their driver on every port, or remove "
            "limits.bytesPerSecond"
        )


class TaskCancelledError(CompactionError):
    """A Spark task was cancelled."""


class JavaError(CompactionError):
    """No Java runtime of version 17 or later was found; names the package to install."""
