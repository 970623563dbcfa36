"""The operations that the core asks of a store, whatever its kind: scan, claim, retire, sweep.

A kind implements `StoreAdapter` and opens it with a function that satisfies `OpenAdapter`, the door `Doors.adapter`.
The coordinator and `compactor run` share it: the same scan, the same candidates, the same decisions. Calls block: run
them in a thread. Any of them may be repeated, and two of different processes may run at once.

A kind that is not in this package needs nothing more: `registry.register` makes it known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.policy import CompactionPolicySpec
from compaction.core.planning.debt import HeldJob, ScanResult, TargetProblem
from compaction.registry import kind_of
from compaction.storage.opened import ThisProcess
from compaction.storage.secrets import NO_SECRETS, Secrets

SWEEP_AGAIN = 30.0
"""Seconds before a sweep is repeated whose deletions were blocked or failed."""


@dataclass(frozen=True, slots=True)
class SenseRequest:
    """The request of a scan of the store. `busy` are targets with a job in progress: their worker recovers them.

    `asked` (monotonic seconds) is the moment of the decision that asks for it, and becomes the scan's beginning: a job
    that ends while the scan waits for its thread is not in `quarantined`, so the scan must not count as newer.

    `quarantined` are names of sources by target, as the policy's status has them. `jobs` are all jobs of the policy
    that have not succeeded, by name, and those that are about to be made: a store whose sources are in no two jobs
    keeps theirs out of others. `released` are sources (target, name) whose quarantine has just ended in the policy's
    status: a store that keeps a quarantine of its own (`Kind.keeps_quarantine`) ends it there.

    `recover` False: change nothing; a target that a crash left half-done is a problem in the scan.
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
    """The result of a scan, the seconds until a sweep has something to delete (None: nothing waits for deletion), and
    for how many seconds the oldest deletion has been due.

    `look_in`: seconds until a scan finds something new although nothing arrives (None: never): so a kind whose targets
    become due by their age nudges the sensor.
    """

    reading: ScanResult
    sweep_in: float | None
    overdue: float = 0.0
    look_in: float | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep: what it deleted, the targets it could not clean, and the seconds until the next one."""

    deleted: int
    bytes: int
    problems: tuple[TargetProblem, ...]
    sweep_in: float | None


class StoreAdapter(Protocol):
    """Implemented per kind of store."""

    def sense(self, request: SenseRequest) -> Sensed:
        """Scan the whole store. One bad target is a problem in the result, and so is a store that cannot be read; never
        an error.
        """
        ...

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """Delete what was replaced longer than the grace ago, and leftovers of attempts not in `active`."""
        ...

    def high_water(self, target: str, job: str) -> int:
        """The largest token ever accepted for the job; 0 when there was none. Raises ClaimRefusedError."""
        ...

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """From now on only `token` may commit for the job. A job that was committed is claimed no more, and that is no
        error: the attempt finds the receipt and reports it.

        Raises:
            StaleTokenError: the store has accepted this token, or a larger one, already.
            ClaimRefusedError: for any other reason; nothing was changed.
        """
        ...

    def close(self) -> None:
        """Close all connections: a call that is under way closes its own at its end, as a later one does."""
        ...

    def retire(self, target: str, job: str) -> None:
        """Nothing may be committed for the job any more. Raises CompactionError: its commits still need the token."""
        ...


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The arguments with which an adapter is opened.

    holder: who has locks and claims, for messages. secrets: those of the policy's namespace. here: the process that
    claims where no cluster does, None for a coordinator. lock_timeout: seconds to wait for a lock of the store. clock:
    monotonic seconds.
    """

    spec: CompactionPolicySpec
    holder: str
    secrets: Secrets = NO_SECRETS
    here: ThisProcess | None = None
    lock_timeout: float = 2.0
    clock: Callable[[], float] = time.monotonic

    @property
    def grace(self) -> float:
        """Seconds for which replaced data stays."""
        return float(self.spec.cleanup.delay)


class OpenAdapter(Protocol):
    """The door `Doors.adapter` of a kind."""

    def __call__(self, request: OpenRequest) -> StoreAdapter:
        """The adapter for a policy's store. Nothing is read: opening never blocks and never fails."""
        ...


def open_store(
    spec: CompactionPolicySpec,
    *,
    holder: str,
    secrets: Secrets = NO_SECRETS,
    here: ThisProcess | None = None,
    lock_timeout: float = 2.0,
    clock: Callable[[], float] = time.monotonic,
) -> StoreAdapter:
    """The adapter for a policy's store; see `OpenRequest`. Keep it while the spec stays: it remembers what did not
    change.
    """
    opened: OpenAdapter = kind_of(spec.store).doors.adapter.open()
    return opened(OpenRequest(spec, holder, secrets, here, lock_timeout, clock))
