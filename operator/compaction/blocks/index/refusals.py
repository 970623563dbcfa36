"""Why the index refuses something for a job. Every refusal changes nothing."""

from __future__ import annotations

from enum import StrEnum


class IndexRefusal(StrEnum):
    """The reason in `BlockClaimError` and `ReplaceRefusedError`. A stale token has an error of its own."""

    MALFORMED = "Malformed"
    """A job name, token, level or list of sources that no plan can have made."""
    JOB_UNKNOWN = "JobUnknown"
    """Nothing was claimed for the job, or so long ago that it is forgotten."""
    JOB_RETIRED = "JobRetired"
    """The job was given up: its sources may be in other jobs by now."""
    JOB_COMMITTED = "JobCommitted"
    """Another attempt, or another result of this one, was committed."""
    JOB_HELD = "JobHeld"
    """Another local process has claimed the job and was not taken over."""
    SOURCE_UNKNOWN = "SourceUnknown"
    SOURCE_GONE = "SourceGone"
    """Replaced, expired or dropped: a result made of it would bring deleted rows back."""
    SOURCE_CLAIMED = "SourceClaimed"
    """It belongs to another open job."""
    SOURCE_QUARANTINED = "SourceQuarantined"
    SOURCES_MIXED = "SourcesMixed"
    """Of more than one tenant, shard or level."""
    NOT_THE_SOURCES = "NotTheSources"
    """What was replaced and skipped is not what was claimed."""
    OUTPUT_MISPLACED = "OutputMisplaced"
    """Of another tenant, shard or level than the job's."""
    OUTPUT_KNOWN = "OutputKnown"
    """Its id or path is known already."""
    OUTPUT_CONDEMNED = "OutputCondemned"
    """Its object is, or was since the claim, being deleted as an orphan: claim again and upload it again."""
    CONTENT_DIFFERS = "ContentDiffers"
    """The rows of the outputs, and of the duplicates dropped, are not the rows of the sources."""
