"""What lies in the store at one moment, from its index and its objects alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compaction.blocks.index.tombstones import summary
from compaction.blocks.model import SECOND, Block
from compaction.blocks.paths import parse_block_path
from compaction.blocks.store import BlockStore
from compaction.local.demo.blocks.scenario import SPAN_HOURS, TOP_LEVEL

_SPAN: Final = SPAN_HOURS * 3600 * SECOND


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One reading of the store. `aside`: ids of quarantined blocks; `tombstones`: replaced blocks whose objects are not
    deleted yet.
    """

    live: tuple[Block, ...]
    aside: frozenset[str] = frozenset()
    tombstones: int = 0

    @property
    def by_level(self) -> Mapping[str, Mapping[int, int]]:
        """Live blocks of each tenant, by level."""
        counts: dict[str, Counter[int]] = {}
        for block in self.live:
            counts.setdefault(block.tenant, Counter())[block.level] += 1
        return counts

    def of(self, tenant: str) -> int:
        """Live blocks of a tenant."""
        return sum(self.by_level.get(tenant, {}).values())

    @property
    def mergeable(self) -> int:
        """Blocks that will be merged although nothing arrives: where only one of a window is left below the top level,
        it waits for another one, and where there are two, they are merged when they are old enough.
        """
        waiting = Counter(
            (block.tenant, block.shard, block.min_time // _SPAN)
            for block in self.live
            if block.level < TOP_LEVEL and block.id not in self.aside
        )
        return sum(count for count in waiting.values() if count > 1)


def look(store: BlockStore) -> StoreFacts:
    """The store as its index knows it. Raises DatabaseUnavailableError, DatabaseError."""
    aside = frozenset(one.block.id for one in store.quarantined())
    return StoreFacts(store.live().blocks, aside, summary(store.index).blocks)


@dataclass(frozen=True, slots=True)
class Stray:
    """Objects and blocks that do not match: neither is to be when all has ended."""

    objects: tuple[str, ...] = field(default=())
    blocks: tuple[str, ...] = field(default=())

    @property
    def none(self) -> bool:
        return not (self.objects or self.blocks)


def compare(store: BlockStore) -> Stray:
    """Objects at paths of blocks that are no live blocks, and live blocks that have no object."""
    objects = {one.path for one in store.objects.list() if parse_block_path(one.path) is not None}
    blocks = {block.path for block in store.live().blocks}
    return Stray(tuple(sorted(objects - blocks)), tuple(sorted(blocks - objects)))
