"""The last word about an attempt: what was committed, what was skipped, and why.

It travels as JSON in an annotation of the job's Lease, from the worker that writes it to the coordinator that reads it.
"""

from __future__ import annotations

import json
from enum import StrEnum

from pydantic import ValidationError

from compaction.api.base import ApiModel
from compaction.api.bounds import Message, Word, first_problem
from compaction.api.job.status import JobReceipt, SkippedSource
from compaction.errors import MalformedReportError


class ReportOutcome(StrEnum):
    """How an attempt ended, in the worker's own judgement."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"


class JobReport(ApiModel):
    """A worker's report about an attempt, in the types of a job's status."""

    token: int
    """The fencing token of the attempt."""
    outcome: ReportOutcome
    """How the worker judges the attempt."""
    reason: Word
    """Why, as one word: a JobReason, or one that the kind of store adds."""
    message: Message = ""
    """The same for a person."""
    charged: bool = True
    """Whether a failure counts against the job."""
    skipped: tuple[SkippedSource, ...] = ()
    """Sources that were left alone because they are damaged."""
    receipt: JobReceipt | None = None
    """What was committed, over all attempts of the job."""

    def to_json(self) -> str:
        """The value of the annotation `compaction.dev/report`."""
        return json.dumps(self.to_object(), separators=(",", ":"))


def parse_report(text: str) -> JobReport:
    """The report in an annotation's value.

    Raises:
        MalformedReportError: it is not one; names the field.
    """
    try:
        return JobReport.model_validate_json(text)
    except ValidationError as error:
        raise MalformedReportError(f"the worker's report cannot be read: {first_problem(error)}") from error
