"""What was registered so far, counted by the writers from their own rows before they were uploaded.

A registration and its entry are one step for readers of an instant, so "all rows registered so far" is one exact
number at each instant. Nothing that compacts knows of the ledger, so compaction goes on all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import TypeVar

from compaction.blocks.model import RowFingerprint

T = TypeVar("T")
NOTHING = RowFingerprint()


@dataclass(frozen=True, slots=True)
class Entries:
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

    def entries(self) -> Entries:
        """All of this instant."""
        return self.instant(lambda: None)[1]

    def instant(self, take: Callable[[], T]) -> tuple[T, Entries]:
        """What `take` returns, and all that is registered while it runs: nothing begins or ends in between."""
        with self._lock:
            taken = take()
            content, blocks = MappingProxyType(dict(self._content)), MappingProxyType(dict(self._blocks))
            return taken, Entries(content, blocks, frozenset(self._lost))
