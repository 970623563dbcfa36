"""All fuzz targets, by name."""

from __future__ import annotations

from typing import Final

from support.fuzzing.block_targets import BLOCK_TARGETS
from support.fuzzing.log_targets import LOG_TARGETS
from support.fuzzing.object_targets import OBJECT_TARGETS
from support.fuzzing.segment_targets import SEGMENT_TARGETS
from support.fuzzing.target import Target

TARGETS: Final[tuple[Target, ...]] = (*SEGMENT_TARGETS, *LOG_TARGETS, *OBJECT_TARGETS, *BLOCK_TARGETS)
