"""The reasons that block stores add to those of the core."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.core.fate import Fate


class BlockJobReason(StrEnum):
    """Reasons in the conditions and attempts of jobs."""

    SOURCES_DIFFER = "SourcesDiffer"  # blocks cannot be merged with one another: the message names column and blocks
    MEMORY_TOO_SMALL = "MemoryTooSmall"  # the merge needs more than spec.store.blockStore.mergeMemory of the policy


FATES: Final[Mapping[str, Fate]] = MappingProxyType(
    {
        # A plan keeps blocks that differ apart, so somebody else made that job.
        BlockJobReason.SOURCES_DIFFER: Fate.PARK,
        BlockJobReason.MEMORY_TOO_SMALL: Fate.PARK,
    }
)
