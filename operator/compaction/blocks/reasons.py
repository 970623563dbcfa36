"""The reasons that block stores add to those of the core, and the words for them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.core.meaning import Fate, Meaning

# The reasons that block stores add to those of the core.


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


# The words for the reasons of block stores.

_EDIT: Final = "kubectl edit cpol {policy} {n}"
_PARKED: Final = "A retry would fail in the same way, so the job stays parked."

JOB_WORDS: Final[Mapping[str, Meaning]] = {
    BlockJobReason.SOURCES_DIFFER: Meaning(
        "Two of the blocks have a column whose types have no common type; nothing was changed.",
        "The job stays parked. Plans keep such blocks apart: a user or an older version created the job.",
        "Delete the job; its blocks are then planned by schema: kubectl delete cjob {job} {n}",
    ),
    BlockJobReason.MEMORY_TOO_SMALL: Meaning(
        "The merge needs more memory than the job may use; nothing was changed.",
        f"{_PARKED} A job's memory is set when it is created.",
        "Raise spec.store.blockStore.mergeMemory, then delete the job; its blocks are planned again: kubectl delete "
        "cjob "
        "{job} {n}",
    ),
}

LEFT_ALONE_WORDS: Final[Mapping[str, Meaning]] = {
    "WaitingForMore": Meaning(
        "The blocks wait for more of their tenant, shard and window of time.",
        "They are merged when their number reaches maxBlocks of their level, or the oldest reaches its maxAge.",
        f"To merge them earlier, lower maxBlocks or maxAge of spec.store.blockStore.levels: {_EDIT}",
    ),
    "NothingToMergeWith": Meaning(
        "The block is the only one of its tenant, shard and window of time, and of its schema, at every level.",
        "It is merged when another one is registered; no action is needed.",
    ),
    "LargeEnough": Meaning(
        "The block is large enough that a merge gains nothing for readers.",
        "It is kept until its retention is over.",
    ),
    "HighestLevel": Meaning(
        "The block has reached the highest level.",
        "It is kept until its retention is over.",
    ),
}
"""Reasons of the queue of blocks, by their words: what the core knows of a kind imports none of its libraries."""
