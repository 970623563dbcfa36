"""The words for the reasons of block stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.kinds.blocks.reasons import BlockJobReason
from compaction.kinds.meaning import Meaning

_EDIT: Final = "kubectl edit cpol {policy} {n}"
_PARKED: Final = "Another attempt would end the same, so the job stays parked."

JOB_WORDS: Final[Mapping[str, Meaning]] = {
    BlockJobReason.SOURCES_DIFFER: Meaning(
        "The blocks have a column whose types in two of them have no common one; nothing was changed.",
        "The job stays parked. Plans keep such blocks apart: the job was made by hand, or by an older version.",
        "Delete the job, and its blocks are planned by their schemas: kubectl delete cjob {job} {n}",
    ),
    BlockJobReason.MEMORY_TOO_SMALL: Meaning(
        "The merge needs more memory than the job may use; nothing was changed.",
        f"{_PARKED} It is told how much to use when it is made.",
        "Raise spec.store.blockStore.mergeMemory, then delete the job, and it is planned anew: kubectl delete cjob "
        "{job} {n}",
    ),
}

LEFT_ALONE_WORDS: Final[Mapping[str, Meaning]] = {
    "WaitingForMore": Meaning(
        "The blocks wait for more of their tenant, shard and window of time.",
        "They are merged when so many have come as their level takes, or when the first of them is old enough.",
        f"To have them merged earlier lower maxBlocks or maxAge of spec.store.blockStore.levels: {_EDIT}",
    ),
    "NothingToMergeWith": Meaning(
        "The block is the only one of its tenant, shard and window of time, and of its schema, at every level.",
        "Nothing is wrong with it: it is merged when another one comes.",
    ),
    "LargeEnough": Meaning(
        "The block has the size from which on a merge gains nothing for readers.",
        "It stays as it is, until its retention is over.",
    ),
    "HighestLevel": Meaning(
        "The block has come through all levels.",
        "It stays as it is, until its retention is over.",
    ),
}
"""Reasons of the queue of blocks, by their words: this room knows no store."""
