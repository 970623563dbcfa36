"""One look at a store, as plain data: what the sensor hands to planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from compaction.planning.candidates import Candidate


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
class Reading:
    """One look at the store. `started` and `ended` are monotonic seconds, `wall` is when it ended (epoch seconds).

    `identities` has an entry per segment that was in quarantine when it began, keyed (log, segment); "" for one that
    is gone. `problem` is set when the root as a whole could not be read; there are no candidates then. `logs` are the
    paths of all logs found, readable or not.
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

    def identity(self, log: str, segment: str) -> str:
        """The identity of a segment as of this reading, or "" when it was not looked at or is gone."""
        return self.identities.get((log, segment), "")
