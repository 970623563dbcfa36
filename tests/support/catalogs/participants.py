"""Clocks and versions for trackers of participants, and reports that are whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from compaction.catalogs.errors import CatalogError
from compaction.catalogs.participants.reports import Cause, PartitionReport, Report, Role


@dataclass
class Clock:
    """Stands until it is moved."""

    now: int

    def __call__(self) -> int:
        return self.now


@dataclass
class Versions:
    """Versions with their activation times."""

    activations: dict[int, int] = field(default_factory=dict)

    def add(self, version: int, activation: int) -> None:
        self.activations = {**self.activations, version: activation}

    def active(self, timestamp: int) -> tuple[int, int]:
        found = [(version, time) for version, time in self.activations.items() if time <= timestamp]
        if not found:
            raise CatalogError(f"no version is active at {timestamp}")
        return max(found, key=lambda item: item[1])


REPORT = Report(
    name="node1",
    minimum=90,
    cause=Cause.PARTITION,
    subject="table 5 partition 3",
    transactions=150,
    oldest_transaction=160,
    low_watermark=100,
    partitions=(PartitionReport(5, 3, Role.PRIMARY, 90),),
    index_builds=(),
    rebalances=(),
    checkpoint=120,
    clock=200,
)
"""Of a participant with one partition, ready."""


def report(**changes: Any) -> Report:
    return replace(REPORT, **changes)
