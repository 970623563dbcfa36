"""A participant with real state, which a test or an operator of another implementation drives step by step
(docs/design/catalog-compaction.md#reference-participant).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import MinimumAheadError, ParticipantStateError
from compaction.catalogs.manager.clock import system_milliseconds
from compaction.catalogs.model.hybrid import hybrid
from compaction.catalogs.participants.minimums import Checkpoint, PartitionKey, PublishedMinimums
from compaction.catalogs.participants.partition_log import PartitionLog
from compaction.catalogs.participants.report import IndexBuild, PartitionReport, Rebalance, Report, Role
from compaction.catalogs.participants.required import required
from compaction.catalogs.participants.transactions import ActiveTransactions
from compaction.catalogs.participants.versions import CatalogVersions, ListedVersions
from compaction.catalogs.participants.watermark import LowWatermark, WatermarkSettings, WatermarkStore
from compaction.catalogs.participants.watermark_file import WatermarkMemory


def system_clock() -> int:
    """The machine's clock as a hybrid timestamp."""
    return hybrid(system_milliseconds())


@dataclass(slots=True)
class _RunningCheckpoint:
    minimums: Checkpoint
    applied: dict[PartitionKey, int]


class ReferenceParticipant:
    """Transactions with begin times, partitions with roles and logs, checkpoints, index builds, rebalances, a low
    watermark. Safe for threads. Methods raise ParticipantStateError for what does not fit the state, which stays.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], int] = system_clock,
        store: WatermarkStore | None = None,
        settings: WatermarkSettings | None = None,
        reads_old_rows: bool = True,
        versions: ListedVersions | CatalogVersions | None = None,
    ) -> None:
        """`reads_old_rows`: as in a `Report`. `versions`: of the catalog that it follows; without one they are listed
        by who drives it. Raises WatermarkFileError.
        """
        self._reads_old_rows = reads_old_rows
        self.name = name
        self._clock, self._offset = clock, 0
        self.versions = versions or ListedVersions()
        self._transactions = ActiveTransactions(self.now, self.versions)
        self._minimums = PublishedMinimums()
        self.watermark = LowWatermark(store or WatermarkMemory(), settings)
        self._lock = threading.Lock()
        self._logs: dict[PartitionKey, PartitionLog] = {}
        self._replicating = True
        self._running: _RunningCheckpoint | None = None
        self._checkpoint = UNDEFINED
        self._builds: dict[int, IndexBuild] = {}
        self._rebalances: dict[int, Rebalance] = {}
        self._readers: set[int] = set()
        self.watermark.start(UNDEFINED)

    # -- what a coordinator asks --------------------------------------------------------------------------------------

    def report(self) -> Report:
        """See `Participant`."""
        with self._lock:
            published = self._minimums.snapshot()
            partitions = tuple(
                PartitionReport(key.table_id, key.partition, self._logs[key].role, minimum)
                for key, minimum in published.items()
            )
            rebalances = tuple(self._rebalances[zone] for zone in sorted(self._rebalances))
            low_watermark = self.watermark.value
            needed = required(low_watermark, partitions, rebalances)
            transactions = self._transactions.minimum()
            return Report(
                self.name,
                needed.minimum,
                needed.cause,
                needed.subject,
                transactions.required,
                transactions.oldest,
                low_watermark,
                partitions,
                tuple(self._builds[index] for index in sorted(self._builds)),
                rebalances,
                self._checkpoint,
                transactions.clock,
                self._reads_old_rows,
            )

    def store_minimum(self, timestamp: int) -> int:
        """See `Participant`. Where another process leads, the command reaches the partition through its replication;
        here it arrives at once, unless replication is paused.
        """
        own = self._transactions.minimum()
        if timestamp > own.clock or self.versions.active(timestamp)[1] > own.required:
            raise MinimumAheadError(self.name, timestamp, own.required)
        with self._lock:
            led = 0
            for key, log in self._logs.items():
                led += log.role is Role.PRIMARY
                if log.role is Role.PRIMARY or self._replicating:
                    log.append(timestamp)
                    self._minimums.store(key, timestamp)
            return led

    # -- what drives it -----------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Its own clock."""
        return self._clock() + (self._offset << 16)

    def set_clock_offset(self, milliseconds: int) -> None:
        """From now on its clock is ahead of the machine's by this."""
        self._offset = milliseconds

    def begin(self) -> int:
        """A read-write transaction; its begin time names it."""
        return self._transactions.begin()

    def begin_read(self, timestamp: int) -> None:
        """A read-only transaction at `timestamp`, which names it; it holds the low watermark."""
        with self._lock:
            if timestamp in self._readers or not self.watermark.acquire(timestamp, timestamp):
                reason = "another reader has it" if timestamp in self._readers else "the low watermark has passed it"
                raise ParticipantStateError(f"{self.name}: no read at {timestamp}: {reason}")
            self._readers.add(timestamp)

    def finish(self, timestamp: int) -> None:
        """The end of the transaction of this name, of either sort."""
        with self._lock:
            reading = timestamp in self._readers
            self._readers.discard(timestamp)
        if reading:
            self.watermark.release(timestamp)
        elif not self._transactions.finish(timestamp):
            raise ParticipantStateError(f"{self.name}: no transaction began at {timestamp}")

    def add_partition(self, table_id: int, partition: int, role: Role) -> None:
        """Its minimum is undefined. One that is here already begins again, in this role."""
        with self._lock:
            key = PartitionKey(table_id, partition)
            self._logs[key] = PartitionLog(role)
            self._minimums.add(key)

    def remove_partition(self, table_id: int, partition: int) -> None:
        """It is gone, and what it published."""
        with self._lock:
            key = PartitionKey(table_id, partition)
            if self._logs.pop(key, None) is None:
                raise ParticipantStateError(f"{self.name}: table {table_id} partition {partition} is not here")
            self._minimums.remove(key)

    def replicate(self, on: bool) -> None:
        """Whether commands of leaders elsewhere arrive."""
        with self._lock:
            self._replicating = on

    def begin_checkpoint(self) -> None:
        """What is applied now becomes durable when it succeeds."""
        with self._lock:
            if self._running is not None:
                raise ParticipantStateError(f"{self.name}: a checkpoint is under way: finish it first")
            applied = {key: log.applied for key, log in self._logs.items()}
            self._running = _RunningCheckpoint(self._minimums.begin_checkpoint(), applied)

    def finish_checkpoint(self, succeeded: bool = True) -> None:
        """The end of the one under way."""
        with self._lock:
            running, self._running = self._running, None
            if running is None:
                raise ParticipantStateError(f"{self.name}: no checkpoint is under way: begin one")
            if not succeeded:
                running.minimums.fail()
                return
            running.minimums.succeed()
            for key, index in running.applied.items():
                if key in self._logs:
                    self._logs[key].checkpointed(index)
            self._checkpoint = self.now()

    def checkpoint(self) -> bool:
        """Begin one and finish it; False when one is under way already."""
        try:
            self.begin_checkpoint()
        except ParticipantStateError:
            return False
        self.finish_checkpoint()
        return True

    def start_index_build(self, index_id: int) -> None:
        """It builds this index, since now; one that is being built goes on."""
        with self._lock:
            self._builds.setdefault(index_id, IndexBuild(index_id, self.now()))

    def end_index_build(self, index_id: int) -> None:
        """The index is built, or dropped."""
        with self._lock:
            if self._builds.pop(index_id, None) is None:
                raise ParticipantStateError(f"{self.name}: index {index_id} is not being built")

    def start_rebalance(self, zone_id: int, minimum: int) -> None:
        """Partitions of the zone move, since now, and need the catalog from `minimum` on."""
        with self._lock:
            self._rebalances[zone_id] = Rebalance(zone_id, minimum, self.now())

    def end_rebalance(self, zone_id: int) -> None:
        """All are where they should be."""
        with self._lock:
            if self._rebalances.pop(zone_id, None) is None:
                raise ParticipantStateError(f"{self.name}: no partitions of zone {zone_id} move")

    def move_watermark(self, timestamp: int) -> int:
        """Raise it as soon as no reader is in the way; its value now. Raises WatermarkFileError."""
        return self.watermark.raise_to(timestamp)

    def restart(self, earliest: int = UNDEFINED) -> None:
        """As after a crash. Forgotten: transactions, readers, published minimums, a checkpoint under way. Kept: the
        watermark as saved, raised to `earliest`; partitions as the last checkpoint holds them, with later commands
        replayed; index builds and rebalances, which go on. Raises WatermarkFileError.
        """
        with self._lock:
            self._transactions.forget()
            self._readers.clear()
            self._running = None
            self._minimums.forget()
            for key, log in self._logs.items():
                for timestamp in log.replay():
                    self._minimums.store(key, timestamp)
            self.watermark.start(earliest)

    def positions(self) -> dict[PartitionKey, tuple[int, int]]:
        """(applied, durable) index of each partition's log."""
        with self._lock:
            return {key: (self._logs[key].applied, self._logs[key].durable) for key in sorted(self._logs)}
