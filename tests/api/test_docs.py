"""docs/resources.md knows every reason a user can meet, and none that does not exist."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from compaction.api.enums import AttemptOutcome, ConditionType, JobReason, JobState, PolicyReason, WaitReason
from compaction.blocks.planning.batches import BlockReason
from compaction.blocks.reasons import BlockJobReason
from compaction.core.planning.candidates import LeftOutReason
from compaction.segments.planning.plan import LeftAloneReason
from compaction.segments.reasons import SegmentReason
from compaction.segments.scan.find import LogErrorReason
from compaction.staging.reasons import StagingReason

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "resources.md").read_text(encoding="utf-8")
WORDS: tuple[type[StrEnum], ...] = (
    PolicyReason,
    JobReason,
    WaitReason,
    LogErrorReason,
    LeftAloneReason,
    LeftOutReason,
    BlockReason,
    BlockJobReason,
    SegmentReason,
    StagingReason,
    AttemptOutcome,
    JobState,
    ConditionType,
)


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.__name__)
def test_every_word_is_explained(words: type[StrEnum]) -> None:
    assert [word.value for word in words if f"`{word.value}`" not in TEXT] == []


def test_every_reason_explained_exists() -> None:
    known = {word.value for words in WORDS for word in words}
    tables = re.findall(r"^\| (`[^|]*`) \|", TEXT, flags=re.MULTILINE)
    named = {name for cell in tables for name in re.findall(r"`([A-Za-z]+)`", cell)}
    assert named - known - {"CompactionPolicy", "CompactionJob", "CatalogCompaction"} == set()
