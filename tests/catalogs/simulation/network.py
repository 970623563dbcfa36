"""Virtual time: what happens is on a heap, in the order of its time; the same seed gives the same run."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from compaction.catalogs.model.descriptors import hybrid

START = 1_750_000_000_000
"""Milliseconds since the epoch at which every run begins."""


@dataclass
class Schedule:
    """Milliseconds since `START`."""

    now: int = 0
    _due: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def after(self, milliseconds: float, happens: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.now + max(1, int(milliseconds)), self._number, happens))

    def run(self, until: int, check: Callable[[], None]) -> None:
        """Everything until then; `check` after each."""
        while self._due and self._due[0][0] <= until:
            self.now, _, happens = heapq.heappop(self._due)
            happens()
            check()
        self.now = until


@dataclass
class SkewedClock:
    """A hybrid clock that is off by `offset` milliseconds and never goes back, unless its process restarts."""

    schedule: Schedule
    offset: int = 0
    _last: int = 0

    def __call__(self) -> int:
        self._last = max(self._last, hybrid(START + self.schedule.now + self.offset))
        return self._last

    def restart(self) -> None:
        self._last = 0


@dataclass
class Network:
    """Delays of messages, and those that are lost."""

    schedule: Schedule
    dice: random.Random
    loss: float = 0.0

    def send(self, arrives: Callable[[], None]) -> None:
        if self.dice.random() < self.loss:
            return
        slow = self.dice.random() < 0.01
        self.schedule.after(self.dice.uniform(3_000, 15_000) if slow else self.dice.uniform(1, 80), arrives)
