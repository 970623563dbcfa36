"""What happens to a block store over time, with real objects and footers but no worker: compactions, also such as died
at some step. Every output says what the rewrite writes into outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.format.footer import read_footer
from compaction.blocks.format.metadata import BlockMetadata, ancestry, decode
from compaction.blocks.index.claims import claim, high_water
from compaction.blocks.index.registering import BlockReplacement, replace
from compaction.blocks.index.rows import created_at
from compaction.blocks.index.tombstones import confirm, due
from compaction.blocks.model import Block, block_path
from compaction.blocks.planning.offers import output_id
from compaction.blocks.registration.describe import describe
from compaction.blocks.store import BlockStore
from support.blocks.block_stores import read, upload
from support.blocks.blocks import parquet

SORT_KEY = ("service", "time")


@dataclass(frozen=True)
class Attempt:
    """An attempt at a job: claimed, with nothing uploaded yet."""

    store: BlockStore
    job: str
    token: int
    sources: tuple[Block, ...]
    level: int
    parts: int

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all its outputs."""
        first = self.sources[0]
        names = [block.id for block in self.sources]
        where = {"tenant": first.tenant, "shard": first.shard, "level": self.level}
        return tuple(
            output_id(names, **where, part=part, attempt=f"{self.job}:{self.token}")  # type: ignore[arg-type]
            for part in range(self.parts)
        )

    def upload(self, *parts: int) -> list[str]:
        """Upload these parts (all by default): the rows in order, cut into equal shares. Returns their paths."""
        store, first = self.store, self.sources[0]
        tables = [read(store, block.path) for block in self.sources]
        rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in SORT_KEY])
        said = [decode(read_footer(store.objects, block.path).metadata) for block in self.sources]
        share = -(-rows.num_rows // self.parts)
        paths = []
        for part in parts or range(self.parts):
            table = rows.slice(part * share, share)
            metadata = BlockMetadata(
                id=self.ids[part],
                tenant=first.tenant,
                shard=first.shard,
                level=self.level,
                time_column="time",
                fingerprint=fingerprint(table),
                sort_key=SORT_KEY,
                job=self.job,
                token=self.token,
                part=part,
                parts=self.parts,
                sources=tuple(block.id for block in self.sources),
                outputs=self.ids,
                ancestors=ancestry(said),
            )
            paths.append(block_path(first.tenant, first.shard, self.ids[part]))
            store.objects.put(paths[-1], parquet(table, metadata))
        return paths

    def commit(self, *, now: int) -> tuple[str, ...]:
        """Replace the sources by all parts; returns their ids."""
        first = self.sources[0]
        outputs = [
            describe(
                self.store.objects,
                block_path(first.tenant, first.shard, block),
                tenant=first.tenant,
                shard=first.shard,
                level=self.level,
            )
            for block in self.ids
        ]
        names = tuple(block.id for block in self.sources)
        replace(
            self.store.index, BlockReplacement(self.job, self.token, names, tuple(outputs), "{}"), clock=lambda: now
        )
        return self.ids


def attempt(
    store: BlockStore, ids: Sequence[str], *, now: int, parts: int = 1, job: str = "", level: int | None = None
) -> Attempt:
    """Claim the blocks for a job, by the next token."""
    job = job or f"job-{'-'.join(sorted(ids))}"[:60]
    claimed = claim(
        store.index, job=job, token=high_water(store.index, job) + 1, sources=ids, now=now, output_level=level
    )
    return Attempt(store, job, claimed.token, claimed.sources, claimed.output_level, parts)


def compact(
    store: BlockStore, ids: Sequence[str], *, now: int | None = None, parts: int = 1, level: int | None = None
) -> tuple[str, ...]:
    """A job that succeeds; returns the ids of its outputs. `now`: that of the youngest source by default."""
    moment = max(created_at(block) for block in ids) if now is None else now
    one = attempt(store, ids, now=moment, parts=parts, level=level)
    one.upload()
    return one.commit(now=moment)


# What goes on in a block store while somebody reads: blocks arrive, are merged, and are deleted after a grace.


def merged(store: BlockStore, sources: Sequence[Block], *, number: int) -> Block:
    """One block with the rows of the sources, uploaded, and as it would be registered."""
    first = sources[0]
    table = pa.concat_tables([read(store, block.path) for block in sources]).sort_by("time")
    path = upload(store, number, tenant=first.tenant, shard=first.shard, table=table)
    return store.describe(path, tenant=first.tenant, shard=first.shard, level=first.level + 1)


def replacement(job: str, token: int, sources: Sequence[Block], output: Block) -> BlockReplacement:
    """The result of a job."""
    return BlockReplacement(job, token, tuple(block.id for block in sources), (output,), "{}")


def compact_meanwhile(store: BlockStore, job: str, sources: Sequence[Block], *, number: int) -> Block:
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
