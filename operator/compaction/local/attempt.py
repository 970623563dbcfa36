"""One attempt of a job in this process, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from compaction.api.enums import JobReason
from compaction.exceptions import (
    BlockStoreError,
    ClaimRefusedError,
    EngineLostError,
    InvalidAssignmentError,
    JobStoppedError,
    SecretError,
    SegmentLogError,
)
from compaction.rewrite.ports import Assignment, JobRunner
from compaction.rewrite.receipts import JobReport, Outcome
from compaction.rewrite.segments.task import failure_of

log = structlog.get_logger(__name__)


class LocalLease:
    """Nobody can take a job from this process; implements `ports.HeldLease`. `stop` ends it before its next commit."""

    def __init__(self, job: str, token: int, stop: threading.Event, progress: Callable[[int], None]) -> None:
        self._job = job
        self._stop = stop
        self._progress = progress
        self.token = token

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


def attempt(
    runner: JobRunner,
    assignment: Assignment,
    lease: LocalLease,
    *,
    policy: str,
    claim: Callable[[], None] = lambda: None,
) -> JobReport:
    """Claim and run the job and report, as a worker would.

    Raises:
        JobStoppedError, EngineLostError: it was stopped, or Spark went away; nothing can be reported.
    """
    token, name = assignment.token, assignment.job_name
    with structlog.contextvars.bound_contextvars(policy=policy, job=name, token=token):
        try:
            claim()
            return runner.run(assignment, lease)
        except SegmentLogError as error:
            failure = failure_of(error, _sources(assignment))
            return JobReport(token, Outcome.FAILED, failure.reason, failure.message)
        except InvalidAssignmentError as error:
            return JobReport(token, Outcome.FAILED, JobReason.INVALID_JOB, str(error))
        except ClaimRefusedError as error:
            return JobReport(token, Outcome.SKIPPED, JobReason.SOURCES_CHANGED, str(error))
        except (BlockStoreError, SecretError) as error:
            return JobReport(token, Outcome.FAILED, JobReason.STORE_UNREADABLE, str(error))
        except (JobStoppedError, EngineLostError):
            raise
        except Exception as error:
            log.exception("job failed unexpectedly")
            return JobReport(token, Outcome.FAILED, JobReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _sources(assignment: Assignment) -> tuple[str, ...]:
    """Every segment the job names."""
    sources = assignment.spec.sources.segment_log
    if sources is None:
        return ()
    return (*(name for group in sources.groups for name in group.segments), *sources.unreferenced)
