"""A participant with real state, which a test or an operator of another implementation drives step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import MinimumAheadError, ParticipantStateError
from compaction.catalogs.manager.clock import system_milliseconds
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.reports import IndexBuild, PartitionReport, Rebalance, Report, Role, required
from compaction.catalogs.participants.watermark import (
    ActiveTransactions,
    CatalogVersions,
    ListedVersions,
    LowWatermark,
    WatermarkMemory,
    WatermarkSettings,
    WatermarkStore,
)

# Requests of a participant's endpoint to the process that it serves (docs/design/catalog-compaction.md#participants).


class Participant(Protocol):
    """Called by several threads at a time."""

    @property
    def name(self) -> str:
        """As in its reports; it stays the same after a restart."""
        ...

    def report(self) -> Report:
        """Report what holds now, by the participant's own clock, which is read together with its transactions: a time
        that the caller brought along could be later than the begin of one that is not counted yet.
        """
        ...

    def store_minimum(self, timestamp: int) -> int:
        """Store the minimum of all transactions in the log of each partition that this participant leads, which its
        replication carries on; how many these are. A smaller one than before changes nothing.

        Raises MinimumAheadError, and nothing is stored, when its own transactions need an older version.
        """
        ...


# The log of a partition: what a minimum goes through before it counts
# (docs/design/catalog-compaction.md#published-minimums).


@dataclass(slots=True)
class PartitionLog:
    """Indexes ascend from 1. `applied`: of the last command that storage has; `durable`: of the last one that a
    checkpoint holds. `commands`: (index, timestamp) of those after it, which a restart replays.
    """

    role: Role
    applied: int = 0
    durable: int = 0
    commands: list[tuple[int, int]] = field(default_factory=list)

    def append(self, timestamp: int) -> None:
        """A command with a minimum, applied at once."""
        self.applied += 1
        self.commands.append((self.applied, timestamp))

    def checkpointed(self, index: int) -> None:
        """A checkpoint that began when `index` was applied has succeeded."""
        self.durable = max(self.durable, index)
        self.commands = [command for command in self.commands if command[0] > self.durable]

    def replay(self) -> list[int]:
        """A restart: storage is what the last checkpoint holds, and the commands after it are applied again. Earlier
        ones are not: they publish nothing a second time. The minimums that are applied, in order.
        """
        self.applied = self.durable + len(self.commands)
        return [timestamp for _, timestamp in self.commands]


# Minimums that the partitions of a participant have published (docs/design/catalog-compaction.md#published-minimums).
#
# A minimum that a partition stored is in its log; a replay after a crash starts at the last checkpoint, and reads the
# catalog from the minimum that the checkpoint holds. So only what a finished checkpoint holds counts as published.


class PartitionKey(NamedTuple):
    """A partition of a table."""

    table_id: int
    partition: int


@dataclass(slots=True)
class _Partition:
    published: int = UNDEFINED
    stored: int = UNDEFINED
    """Waits for a checkpoint that begins after it was stored."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint under way, with what was stored before it began. It ends once, by `succeed` or `fail`."""

    _owner: PublishedMinimums
    _taken: dict[PartitionKey, tuple[_Partition, int]] = field(default_factory=dict)

    def succeed(self) -> None:
        """Everything is durable: publish it."""
        self._owner._finish(self._taken, succeeded=True)
        self._taken = {}

    def fail(self) -> None:
        """Nothing is durable: what was stored waits for the next one."""
        self._owner._finish(self._taken, succeeded=False)
        self._taken = {}


class PublishedMinimums:
    """A minimum per partition, UNDEFINED until one is published, from then on only larger. Safe for threads; memory
    only: after a restart every partition is undefined until it stores a minimum and a checkpoint holds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[PartitionKey, _Partition] = {}

    def add(self, key: PartitionKey) -> None:
        """The participant holds this partition now; a second time its minimum is undefined again."""
        with self._lock:
            self._partitions[key] = _Partition()

    def remove(self, key: PartitionKey) -> None:
        """It does not any more; what a checkpoint under way has of it is dropped."""
        with self._lock:
            self._partitions.pop(key, None)

    def store(self, key: PartitionKey, timestamp: int) -> bool:
        """The partition stored `timestamp`, which the next checkpoint makes durable. False when it is not held here."""
        with self._lock:
            found = self._partitions.get(key)
            if found is None:
                return False
            found.stored = max(found.stored, timestamp)
            return True

    def begin_checkpoint(self) -> Checkpoint:
        """Begin one. What is stored from now on waits for the checkpoint after it."""
        with self._lock:
            taken = {key: (found, found.stored) for key, found in self._partitions.items() if found.stored}
            for found, _ in taken.values():
                found.stored = UNDEFINED
            return Checkpoint(self, taken)

    def record(self, key: PartitionKey, timestamp: int) -> bool:
        """Publish at once, for storage that is durable when it is written, or has nothing to replay. A value that is
        not later than the published one changes nothing. False when the partition is not held here.
        """
        with self._lock:
            found = self._partitions.get(key)
            if found is None:
                return False
            found.published = max(found.published, timestamp)
            return True

    def snapshot(self) -> Mapping[PartitionKey, int]:
        """All partitions at one instant, in their order. A report takes its minimum and its list of partitions from one
        copy: a partition that is added between two reads would be reported without a part in the minimum.
        """
        with self._lock:
            return {key: self._partitions[key].published for key in sorted(self._partitions)}

    def forget(self) -> None:
        """A restart: partitions stay, nothing is published."""
        with self._lock:
            self._partitions = {key: _Partition() for key in self._partitions}

    def _finish(self, taken: Mapping[PartitionKey, tuple[_Partition, int]], *, succeeded: bool) -> None:
        with self._lock:
            for key, (found, timestamp) in taken.items():
                if self._partitions.get(key) is not found:
                    continue  # removed meanwhile, maybe added again: the new one has stored nothing yet
                if succeeded:
                    found.published = max(found.published, timestamp)
                else:
                    found.stored = max(found.stored, timestamp)


# A participant with real state, which a test or an operator of another implementation drives step by step
# (docs/design/catalog-compaction.md#reference-participant).


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
        """Switch the arrival of commands of leaders elsewhere on or off."""
        with self._lock:
            self._replicating = on

    def begin_checkpoint(self) -> None:
        """Begin a checkpoint: what is applied now becomes durable when it succeeds."""
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
