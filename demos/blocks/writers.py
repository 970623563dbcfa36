"""Applications that write blocks in the demo, the ledger of their rows, and the policy of their store."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ulid import ULID

from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.model import SECOND, RowFingerprint, block_path
from compaction.blocks.store import BlockStore
from compaction.errors import CompactionError
from demos.cluster import policy_of
from demos.proving import repeat

# The subject of compaction in the demo of block stores: three tenants, one of them noisy, and the policy.

POLICY: Final = "blocks"
CREDENTIALS_SECRET: Final = "object-store"  # the name of a Secret
INDEX_SECRET: Final = "block-index"  # the name of a Secret
LEVELS: Final = ((20, "5s"), (8, "8s"), (4, "10s"))
TOP_LEVEL: Final = len(LEVELS)
"""What has come so far is not merged any more."""
SPAN_HOURS: Final = 3
"""Width of a window: only blocks of one window are merged, and a run may fall into two of them."""
GRACE: Final = "12s"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A writer of blocks: one each `pause` seconds, of `rows` rows each; `backlog` of them before the policy comes."""

    name: str
    pause: float
    rows: int
    backlog: int


NOISY: Final = Tenant("noisy", pause=0.4, rows=3000, backlog=100)
QUIET: Final = Tenant("acme", pause=1.5, rows=3000, backlog=20)
DAMAGED: Final = Tenant("globex", pause=1.5, rows=3000, backlog=20)
"""The tenant of whose blocks one loses bytes in the store."""
TENANTS: Final = (NOISY, QUIET, DAMAGED)
SHARD: Final = 0
DAMAGED_BLOCK: Final = 5
"""Which of the backlog, so that it has siblings on both sides."""
WRITE_SECONDS: Final = 20.0
"""So long writers write at least, from the first job on; else until the killed worker is replaced."""


def policy(url: str) -> dict[str, Any]:
    """The CompactionPolicy as a document, with small levels."""
    store = {
        "url": url,
        "credentialsSecretName": CREDENTIALS_SECRET,
        "index": {"secretName": INDEX_SECRET},
        "levels": [{"maxBlocks": blocks, "maxAge": age} for blocks, age in LEVELS],
        "span": f"{SPAN_HOURS}h",
        "mergeMemory": "256Mi",
    }
    return policy_of(POLICY, {"blockStore": store}, cleanup={"delay": GRACE})


def secrets(options: Mapping[str, str], index_url: str) -> dict[str, Mapping[str, str]]:
    """The two Secrets by name."""
    return {CREDENTIALS_SECRET: options, INDEX_SECRET: {"url": index_url}}


# The ledger of rows registered so far, counted by the writers from their own rows before they were uploaded.
#
# A registration and its entry are one step for readers of an instant, so "all rows registered so far" is one exact
# number at each instant. Nothing that compacts knows of the ledger, so compaction goes on all the time.

T = TypeVar("T")
NOTHING = RowFingerprint()


@dataclass(frozen=True, slots=True)
class LedgerEntries:
    """All that was registered up to an instant, by tenant. `lost`: ids of blocks that cannot be read any more, on
    purpose; their rows are not in `content`.
    """

    content: Mapping[str, RowFingerprint]
    blocks: Mapping[str, int]
    lost: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        return sum(self.blocks.values())


@dataclass
class Ledger:
    """Safe for threads."""

    _lock: Lock = field(default_factory=Lock)
    _content: dict[str, RowFingerprint] = field(default_factory=dict)
    _blocks: Counter[str] = field(default_factory=Counter)
    _lost: set[str] = field(default_factory=set)

    def enter(self, tenant: str, content: RowFingerprint, register: Callable[[], object]) -> None:
        """Register a block of a tenant and write down its content; neither when `register` raises."""
        with self._lock:
            register()
            self._content[tenant] = self._content.get(tenant, NOTHING) + content
            self._blocks[tenant] += 1

    def lose(self, tenant: str, block: str, content: RowFingerprint) -> None:
        """The block stays registered, and its rows can be read no more."""
        with self._lock:
            self._content[tenant] -= content
            self._lost.add(block)

    def entries(self) -> LedgerEntries:
        """All of this instant."""
        return self.instant(lambda: None)[1]

    def instant(self, take: Callable[[], T]) -> tuple[T, LedgerEntries]:
        """What `take` returns, and all that is registered while it runs: nothing begins or ends in between."""
        with self._lock:
            taken = take()
            content, blocks = MappingProxyType(dict(self._content)), MappingProxyType(dict(self._blocks))
            return taken, LedgerEntries(content, blocks, frozenset(self._lost))


# Applications that write: each tenant's rows become small Parquet blocks, uploaded and registered, one after another.
#
# Their blocks are plain Parquet, as any writer makes them: they carry no fingerprint, so the store counts the rows
# itself at registration, while the ledger has the writer's own count.

SERVICES: Final = tuple(f"service-{number:02}" for number in range(20))


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """One block: its id and path, and the content as its writer knows it. `at`: epoch seconds."""

    id: str
    path: str
    content: RowFingerprint
    at: float


@dataclass
class BlockWriter:
    """One tenant's application. `written` are its blocks in order; `error` is why it ended too early."""

    store: BlockStore
    ledger: Ledger
    tenant: Tenant
    seed: int
    stopped: threading.Event = field(default_factory=threading.Event)
    written: list[WrittenRows] = field(default_factory=list)
    error: CompactionError | None = None

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def write(self, count: int) -> None:
        """So many blocks, as fast as they go. Raises CompactionError."""
        for _ in range(count):
            self._one()

    def run(self) -> None:
        """Blocks at the tenant's pace until `stopped`."""
        try:
            repeat(self._one, self.tenant.pause, self.stopped)
        except CompactionError as error:
            self.error = error

    def upload(self) -> WrittenRows:
        """One block that is not registered (yet)."""
        table = self._rows(time.time())
        block = str(ULID())
        path = block_path(self.tenant.name, SHARD, block)
        self.store.objects.put(path, _parquet(table))
        return WrittenRows(block, path, fingerprint(table), time.time())

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
