"""What the partitions of a participant have published (docs/design/catalog-compaction.md#published-minimums).

A minimum that a partition stored is in its log; a replay after a crash starts at the last checkpoint, and reads the
catalog from the minimum that the checkpoint holds. So only what a finished checkpoint holds counts as published.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from compaction.api.catalog.reasons import UNDEFINED


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
