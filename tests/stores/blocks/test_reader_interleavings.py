"""Any interleaving of writers, compactors, sweepers and readers, replayed from a seed: every snapshot has exactly the
rows that were registered when it was taken, none missing and none twice, for at least the grace.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from compaction.blocks.errors import BlockClaimError, ReplaceRefusedError, SnapshotExpiredError
from compaction.blocks.index.live_blocks import BlockFilter
from compaction.blocks.index.registering import BlockReplacement
from compaction.blocks.index.tombstones import RetentionPeriods, expire
from compaction.blocks.model import Block
from compaction.blocks.reader import BlockReader
from compaction.blocks.store import BlockStore
from compaction.errors import StaleTokenError
from compaction.storage.errors import ObjectMissingError
from support.depth import seeds
from support.stores.block_churn import merged, replacement, sweep
from support.stores.block_index import check
from support.stores.block_stores import upload
from support.stores.blocks import rows

GRACE = 100.0
ROWS = 10
STEPS = 300
TENANTS = ("acme", "other")


@dataclass
class OpenSnapshot:
    """A reader in the middle of its rows. `expected`: the times of the rows that it must see."""

    taken: float
    expected: list[int]
    batches: Iterator[pa.RecordBatch]
    seen: list[int] = field(default_factory=list)


@dataclass
class Story:
    """One run. `live`: the rows (their times) of each tenant that are registered and not expired."""

    store: BlockStore
    chance: random.Random
    clock: list[float]
    live: dict[str, set[int]] = field(default_factory=lambda: {tenant: set() for tenant in TENANTS})
    uploaded: list[tuple[str, str, set[int]]] = field(default_factory=list)
    entered: list[tuple[str, str, set[int]]] = field(default_factory=list)
    attempts: list[tuple[str, int, tuple[Block, ...]]] = field(default_factory=list)
    results: list[BlockReplacement] = field(default_factory=list)
    readers: list[OpenSnapshot] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def run(self) -> None:
        weights = {
            self.upload: 4, self.register: 4, self.claim: 4, self.merge: 4, self.commit: 4, self.retire: 1,
            self.sweep: 2, self.expire: 0.3, self.wait: 3, self.open: 3, self.read: 12,
        }  # fmt: skip
        for _ in range(STEPS):
            self.chance.choices(list(weights), list(weights.values()))[0]()
        while self.readers:
            self.read()
        self.open(BlockFilter())
        while self.readers:
            self.read()
        check(self.store.index)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def is_there(self, path: str) -> bool:
        return any(info.path == path for info in self.store.objects.list(path.rpartition("/")[0]))

    def upload(self) -> None:
        self.number += 1
        tenant, start = self.chance.choice(TENANTS), self.number * ROWS
        path = upload(self.store, self.number, tenant=tenant, table=rows(ROWS, start=start))
        self.uploaded.append((tenant, path, set(range(start, start + ROWS))))

    def register(self) -> None:
        """Some of what was uploaded, and now and then what was registered long ago."""
        tenant = self.chance.choice(TENANTS)
        new = [item for item in self.uploaded if item[0] == tenant][:3]
        again = [item for item in self.entered if item[0] == tenant and self.is_there(item[1])][:1]
        wanted = new + (again if self.chance.random() < 0.3 else [])
        if wanted:
            done = self.store.register([path for _, path, _ in wanted], tenant=tenant, shard=0)
            assert len(done.new) == len(new)
        for item in new:
            self.uploaded.remove(item)
            self.entered.append(item)
            self.live[tenant] |= item[2]

    def claim(self) -> None:
        blocks = list(self.store.live().blocks)
        if not blocks:
            return
        first = self.chance.choice(blocks)
        alike = [block for block in blocks if block.key == first.key and block != first]
        sources = [first, *self.chance.sample(alike, min(len(alike), self.chance.randint(0, 3)))]
        job = self.chance.choice([name for name, _, _ in self.attempts] + [f"j{self.number}-{len(self.attempts)}"] * 4)
        token = self.store.high_water(job) + 1
        try:
            claimed = self.store.claim(
                job=job, token=token, sources=[source.id for source in sources], output_level=first.level + 1
            )
        except BlockClaimError:
            self.count("claims refused")
            return
        self.attempts.append((job, token, claimed.sources))

    def merge(self) -> None:
        if self.attempts:
            job, token, sources = self.attempts.pop(self.chance.randrange(len(self.attempts)))
            self.number += 1
            try:
                output = merged(self.store, sources, number=self.number)
            except ObjectMissingError:  # its sources ended long ago
                return
            self.results.append(replacement(job, token, sources, output))

    def commit(self) -> None:
        if self.results:
            result = self.chance.choice([*self.results, *self.results[-1:] * 4])
            try:
                self.store.replace(result)
            except (ReplaceRefusedError, StaleTokenError):
                self.count("commits refused")
            else:
                self.count("commits")

    def retire(self) -> None:
        if self.attempts:
            self.store.retire(self.chance.choice(self.attempts)[0])

    def sweep(self) -> None:
        self.counts["deleted"] = self.counts.get("deleted", 0) + sweep(self.store, grace=GRACE)

    def expire(self) -> None:
        """All that is there of a tenant now."""
        tenant = self.chance.choice(TENANTS)
        expire(self.store.index, RetentionPeriods(tenants={tenant: 1}), now=self.store.now())
        self.live[tenant].clear()

    def wait(self) -> None:
        self.clock[0] += self.chance.uniform(0, GRACE)

    def open(self, which: BlockFilter | None = None) -> None:
        if which is None:
            low = self.chance.randrange(self.number * ROWS + 1)
            some = self.chance.random() < 0.5
            which = BlockFilter(
                tenant=self.chance.choice([None, *TENANTS]),
                start=low if some else None,
                end=low + self.chance.randrange(20 * ROWS) if some else None,
            )
        expected = sorted(
            time
            for tenant, times in self.live.items()
            for time in times
            if which.tenant in {None, tenant} and (which.start is None or which.start <= time <= (which.end or 0))
        )
        snapshot = BlockReader(self.store, batch_rows=7).snapshot(which)
        self.readers.append(OpenSnapshot(self.clock[0], expected, snapshot.batches()))

    def read(self) -> None:
        if not self.readers:
            return
        reader = self.chance.choice(self.readers)
        try:
            batch = next(reader.batches, None)
        except SnapshotExpiredError:
            assert self.clock[0] - reader.taken >= GRACE, "an object was gone before the grace had passed"
            self.readers.remove(reader)
            self.count("expired")
            return
        if batch is not None:
            reader.seen += batch.column("time").cast(pa.int64()).to_pylist()
            return
        assert sorted(reader.seen) == reader.expected
        self.readers.remove(reader)
        self.count("whole")


@pytest.mark.parametrize("seed", seeds(12))
def test_every_snapshot_is_exact(block_store: BlockStore, seed: int) -> None:
    clock = [1_800_000_000.0]
    store = replace(block_store, clock=lambda: clock[0])
    story = Story(store, random.Random(seed), clock)
    story.run()
    assert min(story.counts[what] for what in ("whole", "commits", "deleted")) > 1, "nothing happened"
