"""Phase 4 by the owner's own call: sparse live entries are appended once more at the head, so that they lie together.

Only the application can do that to its log: which new index stands for which old one is in its machine's state, and in
a cluster a copy is an entry only if the members agree on it. So it is a port with two questions. Planning, reading
back, the map of the moves and the fence are those of `clump.owner`, as for any running owner.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from compaction.segments.clump.moves import Moves
from compaction.segments.clump.owner import Appended, EntryCopy, clump_through_owner
from compaction.segments.clump.plan import ClumpOptions
from compaction.segments.clump.run import ClumpResult
from compaction.segments.commit import fence
from compaction.segments.errors import FlushFailedError, StaleLogTokenError
from compaction.segments.memtable.table import LogPosition
from compaction.segments.planning.limits import SegmentLimits
from compaction.segments.system.log import Log
from compaction.segments.system.phase_one import OWNER
from compaction.segments.system.system import LogSystem
from compaction.storage.pace import Pace

_FLUSH_SECONDS: Final = 600.0
"""For everything that waits before the copies, and the copies, to be in segments."""


class ClumpingMachine(Protocol):
    """The application, in whichever thread it writes the log. Errors it raises end the round, of which nothing counts.

    A copy is no command to be applied again; one that the machine does not adopt dies at its next snapshot.
    """

    def append(self, payloads: Sequence[bytes]) -> Sequence[LogPosition]:
        """Append the payloads, unchanged and in this order; returns once they are durable. Others may come between."""

    def adopt(self, moves: Moves) -> None:
        """Use the new indexes from now on, and return once a snapshot says so: none of the old ones is live in it."""


def clump_own_log(
    system: LogSystem,
    log: Log,
    machine: ClumpingMachine,
    *,
    options: ClumpOptions,
    limits: SegmentLimits,
    bytes_per_second: int | None = None,
) -> ClumpResult:
    """Plan, append, read back, write the map down, adopt: round by round, in the caller's thread.

    `bytes_per_second`: what may be read, handed to the machine and read back.

    Errors as `clump_through_owner`; what was adopted before stays.
    """
    directory = log.directory
    job = f"{OWNER}-{secrets.token_hex(5)}"
    token = fence.claim_next(directory, job=job, holder=OWNER)
    try:
        owner = _RunningOwner(system, log, machine)
        return clump_through_owner(
            owner,
            request=options,
            limits=limits,
            job=job,
            token=token,
            holder=OWNER,
            pace=Pace(bytes_per_second=bytes_per_second),
        )
    finally:
        fence.retire(directory, job)


class _RunningOwner:
    """A log of ours as `clump.owner` sees it: see `LogOwner`."""

    def __init__(self, system: LogSystem, log: Log, machine: ClumpingMachine) -> None:
        self._system = system
        self._log = log
        self._machine = machine
        self._token = 0

    @property
    def directory(self) -> Path:
        return self._log.directory

    def append(self, copies: Sequence[EntryCopy], *, job: str, token: int) -> Sequence[Appended]:
        self._accept(job, token)
        positions = self._machine.append([copy.payload for copy in copies])
        self._system.roll().result(_FLUSH_SECONDS)
        if not self._system.drain(_FLUSH_SECONDS):
            reason = f"the copies are not in segments after {_FLUSH_SECONDS:.0f} s"
            raise FlushFailedError(str(self.directory), reason)
        return [Appended(position.index, position.term) for position in positions]

    def adopt(self, moves: Moves, *, job: str, token: int) -> None:
        self._accept(job, token)
        self._machine.adopt(moves)

    def _accept(self, job: str, token: int) -> None:
        if token < self._token:
            raise StaleLogTokenError(str(self.directory), job, token, self._token)
        self._token = token
