"""What goes on in a block store while somebody reads: blocks arrive, are merged, and are deleted after a grace."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from compaction.blocks.index.registering import BlockReplacement
from compaction.blocks.index.tombstones import confirm, due
from compaction.blocks.model import Block
from compaction.blocks.store import BlockStore
from support.stores.block_stores import read, upload


def merged(store: BlockStore, sources: Sequence[Block], *, number: int) -> Block:
    """One block with the rows of the sources, uploaded, and as it would be registered."""
    first = sources[0]
    table = pa.concat_tables([read(store, block.path) for block in sources]).sort_by("time")
    path = upload(store, number, tenant=first.tenant, shard=first.shard, table=table)
    return store.describe(path, tenant=first.tenant, shard=first.shard, level=first.level + 1)


def replacement(job: str, token: int, sources: Sequence[Block], output: Block) -> BlockReplacement:
    """The result of a job."""
    return BlockReplacement(job, token, tuple(block.id for block in sources), (output,), "{}")


def compact(store: BlockStore, job: str, sources: Sequence[Block], *, number: int) -> Block:
    """The whole way of one job, from its claim to its commit. Raises BlockClaimError."""
    ids = [block.id for block in sources]
    claimed = store.claim(job=job, token=1, sources=ids, output_level=sources[0].level + 1)
    output = merged(store, claimed.sources, number=number)
    store.replace(replacement(job, 1, claimed.sources, output))
    return output


def sweep(store: BlockStore, *, grace: float) -> int:
    """Delete the objects of all blocks that ended `grace` seconds ago; returns how many."""
    batch = due(store.index, now=store.now(), grace=int(grace * 1_000_000))
    assert store.objects.delete([item.path for item in batch]) == []
    return confirm(store.index, [item.block for item in batch], now=store.now())
