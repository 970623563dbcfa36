"""A BlockRewrite job in the words of the block library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from compaction.api.job.resource import CompactionJobSpec
from compaction.api.policy.block_store import BLOCK_REWRITE, BlockStoreReference
from compaction.blocks.merge.settings import MIN_MEMORY
from compaction.errors import InvalidAssignmentError

PART_BYTES: Final = 512 << 20
"""From this size on readers gain nothing from a larger block, and the next levels leave it alone
(`blocks.planning.rules.LARGE_ENOUGH_BYTES`): sources of more become several blocks, by ranges of keys.
"""


@dataclass(frozen=True, slots=True)
class BlockJob:
    """What one job is to make of which blocks. `level`: that of what it makes, above that of all `blocks` (ids, in
    ascending order). `sort_key`: the order that the policy wants; none: that of the sources. `deduplicate_by`: columns
    of which rows with equal values are one row, the last; none: all stay.
    """

    name: str
    store: BlockStoreReference
    tenant: str
    shard: int
    level: int
    blocks: tuple[str, ...]
    memory_bytes: int
    sort_key: tuple[str, ...] = ()
    deduplicate_by: tuple[str, ...] = ()
    part_bytes: int = PART_BYTES

    @classmethod
    def of(cls, spec: CompactionJobSpec, *, name: str) -> Self:
        """Read a job's spec.

        Raises:
            InvalidAssignmentError: another kind of job, or limits within which nothing can be merged.
        """
        sources, parameters = spec.sources.blocks, spec.block_parameters
        if spec.kind != BLOCK_REWRITE or sources is None:
            raise InvalidAssignmentError(f"job {name}: this worker cannot do a {spec.kind} without blocks")
        if parameters.memory_bytes < MIN_MEMORY:
            given = f"{parameters.memory_bytes} bytes of memory"
            raise InvalidAssignmentError(f"job {name}: {given} are too few for a merge, which takes {MIN_MEMORY}")
        for field, columns in (("deduplicateBy", parameters.deduplicate_by), ("sortKey", parameters.sort_key)):
            if len(set(columns)) != len(columns):
                raise InvalidAssignmentError(f"job {name}: a column of {field} is named twice")
        return cls(
            name=name,
            store=sources.store,
            tenant=sources.tenant,
            shard=sources.shard,
            level=spec.level + 1,
            blocks=tuple(sorted(sources.blocks)),
            memory_bytes=parameters.memory_bytes,
            sort_key=parameters.sort_key,
            deduplicate_by=parameters.deduplicate_by,
        )
