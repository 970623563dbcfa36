"""Applications that write: each tenant's rows become small Parquet blocks, uploaded and registered, one after another.

Their blocks are plain Parquet, as any writer makes them: they carry no fingerprint, so the store counts the rows itself
at registration, while the ledger has the writer's own count.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ulid import ULID

from compaction.blocks.fingerprint.rows import fingerprint
from compaction.blocks.model import SECOND, RowFingerprint
from compaction.blocks.paths import block_path
from compaction.blocks.store import BlockStore
from compaction.errors import CompactionError
from compaction.local.demo.blocks.ledger import Ledger
from compaction.local.demo.blocks.scenario import SHARD, Tenant

SERVICES: Final = tuple(f"service-{number:02}" for number in range(20))
JOIN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Written:
    """One block: its id and path, and the content as its writer knows it. `at`: epoch seconds."""

    id: str
    path: str
    content: RowFingerprint
    at: float


@dataclass
class Writer:
    """One tenant's application. `written` are its blocks in order; `error` is why it ended too early."""

    store: BlockStore
    ledger: Ledger
    tenant: Tenant
    seed: int
    stopped: threading.Event = field(default_factory=threading.Event)
    written: list[Written] = field(default_factory=list)
    error: CompactionError | None = None

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def write(self, count: int) -> None:
        """So many blocks, as fast as they go. Raises CompactionError."""
        for _ in range(count):
            self._one()

    def run(self) -> None:
        """Blocks at the tenant's pace until `stopped`."""
        due = time.monotonic()
        try:
            while not self.stopped.is_set():
                self._one()
                # What a slow machine misses is not made up for.
                due = max(due + self.tenant.pause, time.monotonic())
                self.stopped.wait(due - time.monotonic())
        except CompactionError as error:
            self.error = error

    def upload(self) -> Written:
        """One block that is not registered (yet)."""
        table = self._rows(time.time())
        block = str(ULID())
        path = block_path(self.tenant.name, SHARD, block)
        self.store.objects.put(path, _parquet(table))
        return Written(block, path, fingerprint(table), time.time())

    def _one(self) -> None:
        block = self.upload()
        described = self.store.describe(block.path, tenant=self.tenant.name, shard=SHARD)
        self.ledger.enter(self.tenant.name, block.content, lambda: self.store.register_blocks([described]))
        self.written.append(replace(block, at=time.time()))

    def _rows(self, now: float) -> pa.Table:
        """Measurements of the last seconds, sorted by service and time."""
        count, draw = self.tenant.rows, self._random
        ends = int(now * SECOND)
        times = ends - draw.integers(0, 5 * SECOND, count)
        services = draw.integers(0, len(SERVICES), count)
        order = np.lexsort((times, services))
        values = np.round(draw.gamma(2.0, 40.0, count), 1)
        codes = pa.DictionaryArray.from_arrays(pa.array(services[order], pa.int32()), list(SERVICES))
        columns = {
            "service": codes,
            "time": pa.array(times[order], pa.timestamp("us", "UTC")),
            "status": pa.array(draw.choice([200, 200, 200, 404, 500], count), pa.int32()),
            "milliseconds": pa.array(values),
        }
        return pa.table(columns)


def _parquet(table: pa.Table) -> bytes:
    order = pq.SortingColumn.from_ordering(table.schema, [("service", "ascending"), ("time", "ascending")])
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", sorting_columns=order, write_page_checksum=True)
    return sink.getvalue()


@contextmanager
def writing(writers: list[Writer]) -> Iterator[None]:
    """All of them write, each in a thread of its own, until the block is left."""
    threads = [threading.Thread(target=writer.run, name=writer.tenant.name, daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for writer in writers:
            writer.stopped.set()
        for thread in threads:
            thread.join(JOIN_SECONDS)
