"""What a compacted segment may hold, and what to do when a snapshot does not say what is live."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from compaction.segments.errors import InvalidGroupError
from compaction.segments.format.names import MAX_SOURCES
from compaction.segments.model import DEFAULT_MAX_COUNT, DEFAULT_MAX_SIZE, MAX_COUNT_LIMIT


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of one compacted segment: entries (1..65535, 16 bits on disk), payload bytes, and source segments (1..8).

    An equal number fits (docs/design/segment-planning.md#groups). InvalidGroupError when a limit is out of range.
    """

    max_entries: int = DEFAULT_MAX_COUNT
    max_bytes: int = DEFAULT_MAX_SIZE
    max_sources: int = MAX_SOURCES

    def __post_init__(self) -> None:
        if not 1 <= self.max_entries <= MAX_COUNT_LIMIT:
            raise InvalidGroupError(f"max_entries {self.max_entries} is not in 1..{MAX_COUNT_LIMIT}")
        if self.max_bytes < 1:
            raise InvalidGroupError(f"max_bytes {self.max_bytes} is not positive")
        if not 1 <= self.max_sources <= MAX_SOURCES:
            raise InvalidGroupError(f"max_sources {self.max_sources} is not in 1..{MAX_SOURCES}")


class IndexesMissing(StrEnum):
    """What a snapshot without its `indexes` file means (docs/design/segment-commit.md#windows-of-the-reference, W2)."""

    REFUSE = "Refuse"
    """Unknown: plan nothing until a user states what is live."""
    TREAT_AS_EMPTY = "TreatAsEmpty"
    """Empty: only right when the log's owner keeps no live indexes."""
