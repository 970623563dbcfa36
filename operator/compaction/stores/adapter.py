"""A store as the coordinator sees it, whatever its kind: look, claim, retire, sweep. Blocking calls; run them in a
thread. `stores/adapters.py` opens the one that a policy describes.

The coordinator and `compactor run` share this: the same look at the store, the same candidates, the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from compaction.api.job import CompactionJobSpec
from compaction.planning.reading import HeldJob, LogProblem, Reading

SWEEP_AGAIN = 30.0
"""Seconds before a sweep is repeated whose deletions were blocked or failed."""


@dataclass(frozen=True, slots=True)
class SenseRequest:
    """What a look at the store is made with. `busy` are logs with a job in progress: their worker recovers them.

    `asked` (monotonic seconds) is the moment of the decision that asks for it, and becomes the reading's beginning: a
    job that ends while the look waits for its thread is not in `quarantined`, so the reading must not count as newer.

    `jobs` are all jobs of the policy that have not succeeded, by name, and those that are about to be made: a block
    store keeps their blocks out of others. `released` are sources (lane, name) whose quarantine somebody has just ended
    in the policy's status: a block store, which has a quarantine of its own, ends it there.

    `recover` False: change nothing; a log that a crash left half-done is a problem in the reading.
    """

    number: int
    generation: int
    asked: float
    quarantined: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    busy: frozenset[str] = frozenset()
    recover: bool = True
    jobs: Mapping[str, HeldJob] = field(default_factory=lambda: MappingProxyType({}))
    released: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Sensed:
    """A reading, the seconds until a sweep has something to delete (None: nothing waits for deletion), and for how many
    seconds the oldest deletion has been due.

    `look_in`: seconds until a look finds something new although nothing arrives (None: never); a batch of blocks is due
    by its age.
    """

    reading: Reading
    sweep_in: float | None
    overdue: float = 0.0
    look_in: float | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted, the logs it could not clean, and the seconds until the next one."""

    deleted: int
    bytes: int
    problems: tuple[LogProblem, ...]
    sweep_in: float | None


class StoreAdapter(Protocol):
    """Implemented per kind of store."""

    def sense(self, request: SenseRequest) -> Sensed:
        """Look at the whole store. One bad log is a problem in the reading, never an error."""
        ...

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """Delete what was replaced longer than the grace ago, and leftovers of attempts not in `active`."""
        ...

    def high_water(self, log: str, job: str) -> int:
        """The largest token ever accepted for the job; 0 when there was none."""
        ...

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """From now on only `token` may commit for the job. Raises StaleTokenError, LockHeldError, ClaimRefusedError and
        other store errors. A job that was committed is claimed no more, and that is no error: the attempt finds the
        receipt and reports it.
        """
        ...

    def close(self) -> None:
        """Let go of all connections: what is under way goes on and lets go at its end, as a later call does."""
        ...

    def retire(self, log: str, job: str) -> None:
        """Nothing may be committed for the job any more."""
        ...
