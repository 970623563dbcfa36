"""Readers while others register, compact and delete at the same time: at every instant they see all registered rows.

Each writer registers its batches one after the other, several blocks at once, so what a reader sees of a writer is all
of its first k batches and nothing else, with k between what was registered before the snapshot and what was begun
before its end. Rows carry writer and batch; a row that is missing or there twice shows.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from compaction.blocks.errors import BlockClaimError, ReplaceRefusedError, SnapshotExpiredError
from compaction.blocks.index.live_blocks import BlockFilter
from compaction.blocks.index.registering import BlockReplacement
from compaction.blocks.index.registering import replace as commit
from compaction.blocks.index.tombstones import RetentionPeriods, expire
from compaction.blocks.model import Block
from compaction.blocks.reader import BlockReader
from compaction.blocks.store import BlockStore
from compaction.errors import StaleTokenError
from compaction.storage.errors import ObjectMissingError
from support.blocks.block_histories import merged, replacement, sweep
from support.blocks.block_stores import check, upload
from support.blocks.blocks import rows
from support.timing import seeds

WRITERS = 2
BATCHES = 25
BLOCKS = 3
ROWS = 8
GRACE = 2.0


@dataclass
class Load:
    """What runs at the same time, and what it has done so far."""

    store: BlockStore
    begun: list[int] = field(default_factory=lambda: [0] * WRITERS)
    registered: list[int] = field(default_factory=lambda: [0] * WRITERS)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    over: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    longest_change: float = 0.0

    def write(self, writer: int) -> None:
        for batch in range(BATCHES):
            paths = []
            for part in range(BLOCKS):
                ids = [(batch * BLOCKS + part) * ROWS + row for row in range(ROWS)]
                moments = pa.array([1000 * item + writer for item in ids], pa.timestamp("us", "UTC"))
                table = pa.table(
                    {"service": [f"w{writer}"] * ROWS, "time": moments, "batch": [batch] * ROWS, "id": ids}
                )
                paths.append(upload(self.store, next(self.numbers), tenant=f"t{writer % 2}", table=table))
            self.begun[writer] = batch + 1
            assert len(self.store.register(paths, tenant=f"t{writer % 2}", shard=0).new) == BLOCKS
            self.registered[writer] = batch + 1

    def compact(self, compactor: int) -> None:
        chance = random.Random(compactor)
        for turn in itertools.count():
            if self.over.is_set():
                return
            if (sources := self._alike(chance)) is None:
                continue
            try:
                self._compact(f"job-{compactor}-{turn}", sources)
            except BlockClaimError:
                self.done["claims refused"] += 1
            else:
                self.done["compacted"] += 1

    def _compact(self, job: str, sources: list[Block]) -> None:
        ids = [block.id for block in sources]
        claimed = self.store.claim(job=job, token=1, sources=ids, output_level=sources[0].level + 1)
        result = replacement(job, 1, claimed.sources, merged(self.store, claimed.sources, number=next(self.numbers)))
        began = []

        def clock() -> int:
            began.append(time.monotonic())
            return self.store.now()

        commit(self.store.index, result, clock=clock)
        self.longest_change = max(self.longest_change, time.monotonic() - began[0])

    def _alike(self, chance: random.Random) -> list[Block] | None:
        blocks = list(self.store.live().blocks)
        groups = [[block for block in blocks if block.key == item.key][:4] for item in blocks]
        several = [group for group in groups if len(group) > 1]
        return chance.choice(several) if several else None

    def sweep(self, _: int) -> None:
        while not self.over.wait(0.05):
            self.done["deleted"] += sweep(self.store, grace=GRACE)

    def read(self, _: int) -> None:
        reader = BlockReader(self.store, batch_rows=16)
        while not self.over.is_set():
            before, began = list(self.registered), time.time()
            snapshot = reader.snapshot()
            after = list(self.begun)
            seen: Counter[tuple[str, int, int]] = Counter()
            try:
                for batch in snapshot.batches():
                    seen.update(
                        zip(*(batch.column(name).to_pylist() for name in ("service", "batch", "id")), strict=True)
                    )
            except SnapshotExpiredError:
                # The grace begins in the change that ends the blocks; until it is over, snapshots are taken of them.
                assert time.time() - began >= GRACE - self.longest_change
                self.done["expired"] += 1
                continue
            self._judge(seen, before, after)
            self.done["read"] += 1

    def _judge(self, seen: Counter[tuple[str, int, int]], before: list[int], after: list[int]) -> None:
        assert set(seen.values()) <= {1}, "a row is there twice"
        for writer in range(WRITERS):
            mine = {(batch, item) for service, batch, item in seen if service == f"w{writer}"}
            batches = len({batch for batch, _ in mine})
            assert before[writer] <= batches <= after[writer]
            size = BLOCKS * ROWS
            assert mine == {(item // size, item) for item in range(batches * size)}, "a part of a batch, or a gap"


def test_readers_see_all_registered_rows_at_every_instant(block_store: BlockStore) -> None:
    load = Load(block_store)
    with ThreadPoolExecutor(8) as pool:
        others = [
            pool.submit(until_over(load, work), number) for work in (load.compact, load.read) for number in (0, 1)
        ]
        others.append(pool.submit(until_over(load, load.sweep), 0))
        try:
            for writer in [pool.submit(load.write, number) for number in range(WRITERS)]:
                writer.result()
            while not load.over.wait(0.05) and min(load.done["read"], load.done["compacted"]) < 4:
                pass
        finally:
            load.over.set()
    for other in others:
        other.result()
    check(block_store.index)
    whole = [item for batch in BlockReader(block_store).snapshot().batches() for item in batch.column("id").to_pylist()]
    assert sorted(whole) == sorted(list(range(BATCHES * BLOCKS * ROWS)) * WRITERS)


def until_over(load: Load, work: Callable[[int], None]) -> Callable[[int], None]:
    """The work; whoever fails ends it for all."""

    def run(number: int) -> None:
        try:
            work(number)
        finally:
            load.over.set()

    return run


# Any interleaving of writers, compactors, sweepers and readers, replayed from a seed: every snapshot has exactly the
# rows that were registered when it was taken, none missing and none twice, for at least the grace.

INTERLEAVED_GRACE = 100.0
INTERLEAVED_ROWS = 10
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
        tenant, start = self.chance.choice(TENANTS), self.number * INTERLEAVED_ROWS
        path = upload(self.store, self.number, tenant=tenant, table=rows(INTERLEAVED_ROWS, start=start))
        self.uploaded.append((tenant, path, set(range(start, start + INTERLEAVED_ROWS))))

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
        self.counts["deleted"] = self.counts.get("deleted", 0) + sweep(self.store, grace=INTERLEAVED_GRACE)

    def expire(self) -> None:
        """All that is there of a tenant now."""
        tenant = self.chance.choice(TENANTS)
        expire(self.store.index, RetentionPeriods(tenants={tenant: 1}), clock=self.store.now)
        self.live[tenant].clear()

    def wait(self) -> None:
        self.clock[0] += self.chance.uniform(0, INTERLEAVED_GRACE)

    def open(self, which: BlockFilter | None = None) -> None:
        if which is None:
            low = self.chance.randrange(self.number * INTERLEAVED_ROWS + 1)
            some = self.chance.random() < 0.5
            which = BlockFilter(
                tenant=self.chance.choice([None, *TENANTS]),
                start=low if some else None,
                end=low + self.chance.randrange(20 * INTERLEAVED_ROWS) if some else None,
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
            assert self.clock[0] - reader.taken >= INTERLEAVED_GRACE, "an object was gone before the grace had passed"
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
