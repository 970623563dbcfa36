"""A worker's last word about an attempt, read from the annotation of its job Lease (rewrite/receipts.py writes it)."""

from __future__ import annotations

from pydantic import ValidationError

from compaction.api.base import ApiModel
from compaction.api.bounds import Message, Word, first_problem
from compaction.api.job import JobReceipt, SkippedSource
from compaction.exceptions import MalformedReportError
from compaction.rewrite.receipts import Outcome


class WorkerReport(ApiModel):
    """What `JobReport.to_json` wrote, in the types of a job's status."""

    token: int
    """The fencing token of the attempt."""
    outcome: Outcome
    """How the worker judges the attempt."""
    reason: Word
    """Why, as one word; usually a JobReason."""
    message: Message = ""
    """The same for a person."""
    charged: bool = True
    """Whether a failure counts against the job."""
    skipped: tuple[SkippedSource, ...] = ()
    """Sources that were left alone because they are damaged."""
    receipt: JobReceipt | None = None
    """What was committed, over all attempts of the job."""


def parse_report(text: str) -> WorkerReport:
    """The report in an annotation's value.

    Raises:
        MalformedReportError: it is not one; names the field.
    """
    try:
        return WorkerReport.model_validate_json(text)
    except ValidationError as error:
        raise MalformedReportError(f"the worker's report cannot be read: {first_problem(error)}") from error
