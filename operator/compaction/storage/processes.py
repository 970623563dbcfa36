"""A process that claims jobs where no cluster does: who it is, so that others can tell whether it still runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LEASE: Final = 60 * 1_000_000
"""Microseconds of silence after which a local run counts as gone."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. `host` is its machine's name, for people; `place` tells the machine, its boot and the namespace of its
    pids from every other (empty: unknown), so that `pid` and `started` mean the same only where `place` is the same.
    `lease`: microseconds of silence after which it counts as gone.
    """

    id: str
    host: str
    place: str
    pid: int
    started: str
    lease: int


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """This process as a holder of claims. `has_ended(pid, started)`: that process of this machine has ended."""

    holder: Holder
    has_ended: Callable[[int, str], bool]
