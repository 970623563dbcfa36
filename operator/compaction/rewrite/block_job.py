"""A BlockRewrite job in the words of the block library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from compaction.rewrite.block_store import StorePlace

PART_BYTES: Final = 512 << 20
"""From this size on readers gain nothing from a larger block, and the next levels leave it alone
(`planning.block_rules.LARGE_ENOUGH_BYTES`): sources of more become several blocks, by ranges of keys.
"""


@dataclass(frozen=True, slots=True)
class BlockJob:
    """What one job is to make of which blocks. `level`: that of what it makes, above that of all `blocks` (ids, in
    ascending order). `deduplicate_by`: columns of which rows with equal values are one row, the last; none: all stay.
    """

    name: str
    store: StorePlace
    tenant: str
    shard: int
    level: int
    blocks: tuple[str, ...]
    memory_bytes: int
    deduplicate_by: tuple[str, ...] = ()
    part_bytes: int = PART_BYTES
