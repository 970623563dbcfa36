"""One look at a store, as plain data: what the sensor hands to planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from compaction.planning.candidates import Candidate
from compaction.planning.planner import LeftOut

MOST_COLUMNS: Final = 3
"""Columns that a message names."""


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that exists and has not succeeded: its lane, its level, and the blocks that are in no other job."""

    lane: str
    level: int
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogProblem:
    """A log that could not be planned."""

    log: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class QueuedBlocks:
    """Blocks of one level and tenant that wait in so many batches."""

    level: int
    tenant: str
    blocks: int
    bytes: int
    batches: int = 1


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """Blocks of a tenant that lie in the same windows of time and are not merged because of their schemas.

    schemas: how many kinds there are, each of which is merged by itself.
    columns: the columns whose types have no common one, in words; empty when nothing tells what some schemas hold.
    alone: blocks that would be merged, were it not for their schemas.
    """

    tenant: str
    schemas: int
    columns: tuple[str, ...]
    blocks: int
    alone: int = 0

    def __str__(self) -> str:
        named, more = "; ".join(self.columns[:MOST_COLUMNS]), len(self.columns) - MOST_COLUMNS
        why = f"{named}{f'; {more} more' * (more > 0)}" or "footers that say what they hold cannot be read"
        return f"{self.schemas} schemas of `{self.tenant}` cannot be merged: {why}"


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """What a block store holds, as of a reading.

    live: blocks that a reader of everything would open.
    windows: how many combinations of tenant, shard and window of time have any: a query about one of them opens
        `live / windows` blocks on average.
    beyond: blocks that are due and in no candidate, because a look offers a bounded number: they are debt all the same.
    conflicts: blocks that their schemas keep apart, the most first.
    """

    live: int
    windows: int
    beyond: tuple[QueuedBlocks, ...] = ()
    conflicts: tuple[SchemaConflict, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the store. `started` and `ended` are monotonic seconds, `wall` is when it ended (epoch seconds).

    `identities` has an entry per source that was in quarantine when it began, keyed (lane, source); "" for one that
    is gone, or was released. `problem` is set when the store as a whole could not be read; there are no candidates
    then. `logs` are the lanes of everything found, readable or not: paths of logs; batches of blocks that are offered.
    `blocks` is None for stores of other kinds. `left_out` is what is in no candidate, with the store's own reasons.
    `missing_entries` counts the live entries of all logs that no segment holds.
    `outdated` are names of jobs that can never be done any more: some of their sources are gone, or set aside.
    """

    number: int
    generation: int
    started: float
    ended: float
    wall: float
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[LogProblem, ...] = ()
    problem: LogProblem | None = None
    logs: frozenset[str] = frozenset()
    identities: Mapping[tuple[str, str], str] = field(default_factory=lambda: MappingProxyType({}))
    blocks: BlockFigures | None = None
    left_out: tuple[LeftOut, ...] = ()
    outdated: frozenset[str] = frozenset()
    missing_entries: int = 0

    def says_the_same(self, other: Reading) -> bool:
        """Whether both found the same in the store; when they were made, and their numbers, do not count."""
        before = {one.path: one for one in other.candidates}
        if len(self.candidates) != len(other.candidates) or _besides(self) != _besides(other):
            return False
        return all(
            (known := before.get(one.path)) is not None and replace(one, sensed_at=known.sensed_at) == known
            for one in self.candidates
        )

    def identity(self, log: str, segment: str) -> str:
        """The identity of a segment as of this reading, or "" when it was not looked at or is gone."""
        return self.identities.get((log, segment), "")


def _besides(reading: Reading) -> Reading:
    """Everything but the candidates, and when it was made."""
    return replace(reading, number=0, started=0.0, ended=0.0, wall=0.0, candidates=())
