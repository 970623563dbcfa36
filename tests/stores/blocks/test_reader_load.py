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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from compaction.blocks.errors import BlockClaimError, SnapshotExpiredError
from compaction.blocks.model import Block
from compaction.blocks.reader import BlockReader
from compaction.blocks.store import BlockStore
from support.stores.block_churn import compact, sweep
from support.stores.block_index import check
from support.stores.block_stores import upload

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
                compact(self.store, f"job-{compactor}-{turn}", sources, number=next(self.numbers))
            except BlockClaimError:
                self.done["claims refused"] += 1
            else:
                self.done["compacted"] += 1

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
                assert time.time() - began >= GRACE
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
