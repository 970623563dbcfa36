"""One attempt of a job in this process, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from compaction.api.enums import JobReason
from compaction.api.job.report import JobReport, ReportOutcome
from compaction.errors import InvalidAssignmentError, StaleTokenError
from compaction.worker.errors import EngineLostError, JobStoppedError
from compaction.worker.ports import Assignment, JobRunner

log = structlog.get_logger(__name__)


class LocalLease:
    """No other process can take a job from this one; implements `ports.HeldLease`. `stop` ends it before its next
    commit; the coordinator raises `bytes_per_second`.
    """

    def __init__(self, assignment: Assignment, stop: threading.Event, progress: Callable[[int], None]) -> None:
        self._job = assignment.job_name
        self._stop = stop
        self._progress = progress
        self.token = assignment.token
        self.bytes_per_second = assignment.bytes_per_second

    def should_stop(self) -> bool:
        """See `ports.HeldLease`."""
        return self._stop.is_set()

    def ensure_held(self) -> None:
        """See `ports.HeldLease`."""
        if self._stop.is_set():
            raise JobStoppedError(f"job {self._job}: interrupted before its next commit")

    def set_progress(self, percent: int) -> None:
        """See `ports.HeldLease`."""
        self._progress(percent)


def attempt(runner: JobRunner, assignment: Assignment, lease: LocalLease, *, policy: str) -> JobReport:
    """Run the job and report, as a worker would.

    Raises:
        JobStoppedError, EngineLostError: it was stopped, or Spark went away; nothing can be reported.
    """
    token, name = assignment.token, assignment.job_name
    with structlog.contextvars.bound_contextvars(policy=policy, job=name, token=token):
        try:
            return runner.run(assignment, lease)
        except StaleTokenError as error:
            return _failed(token, JobReason.STALE_TOKEN, error)
        except InvalidAssignmentError as error:
            return _failed(token, JobReason.INVALID_JOB, error)
        except (JobStoppedError, EngineLostError):
            raise
        except Exception as error:
            log.exception("job failed unexpectedly")
            return _failed(token, JobReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _failed(token: int, reason: str, why: object) -> JobReport:
    return JobReport(token=token, outcome=ReportOutcome.FAILED, reason=reason, message=str(why))
