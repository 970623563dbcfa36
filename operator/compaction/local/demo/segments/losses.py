"""What the owners suffer on purpose: the leader is killed and comes back; a follower is down until the others have
dropped entries that it does not have, and is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from compaction.api.enums import JobState
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.segments.owners import FOLLOWER, LEADER, Owners
from compaction.local.demo.segments.receipts import log_of
from replicated_kv.messages import Status
from replicated_kv.workload import Workload

ENOUGH_BATCHES: Final = 20
"""So many acknowledged batches show that the store works."""


class Loss(Enum):
    """How far it has gone, in this order."""

    NONE = 0
    LEADER_KILLED = 1
    FOLLOWER_DOWN = 2
    FOLLOWER_RETURNS = 3
    OVER = 4


@dataclass
class OwnerLosses:
    """`killed_at`: when the leader was killed; `batches`: acknowledged until then. `behind`: the follower's last entry
    when it was killed; `skipped`: the leader's snapshot when it came back; `installed`: snapshots that it received.
    """

    owners: Owners
    workload: Workload
    stage: Loss = Loss.NONE
    killed_at: datetime | None = None
    batches: int = 0
    behind: int = 0
    skipped: int = 0
    installed: int = 0

    def happen(self, seen: DemoObservation, statuses: Mapping[str, Status]) -> str:
        """The next of it, if it is due, in words; empty when nothing happened now. DemoError: a member ends at once."""
        leader, follower = statuses.get(LEADER), statuses.get(FOLLOWER)
        written = len(self.workload.moments)
        if self.stage is Loss.NONE and self._compacted(seen) and written >= ENOUGH_BATCHES:
            return self._kill_leader(written)
        if self.stage is Loss.LEADER_KILLED and written >= self.batches + ENOUGH_BATCHES and follower is not None:
            self.behind = follower.last
            self.owners.kill(FOLLOWER)
            self.stage = Loss.FOLLOWER_DOWN
            return f"killed (SIGKILL): member {FOLLOWER}, at entry {self.behind}"
        if self.stage is Loss.FOLLOWER_DOWN and leader is not None and leader.snapshot > self.behind:
            self.skipped = leader.snapshot
            self.owners.start(FOLLOWER)
            self.stage = Loss.FOLLOWER_RETURNS
            return f"member {FOLLOWER} starts again; the leader's snapshot is at entry {self.skipped} by now"
        if self.stage is Loss.FOLLOWER_RETURNS and follower is not None and follower.installed:
            self.installed, self.stage = follower.installed, Loss.OVER
            return f"member {FOLLOWER} is installed: live entries it lacks, and the snapshot of {follower.snapshot}"
        return ""

    def _kill_leader(self, written: int) -> str:
        self.owners.kill(LEADER)
        self.killed_at, self.batches, self.stage = datetime.now(UTC), written, Loss.LEADER_KILLED
        self.owners.start(LEADER)
        return f"killed (SIGKILL): member {LEADER}, the leader, after {self.workload.written} changes; it starts again"

    def _compacted(self, seen: DemoObservation) -> bool:
        path = self.owners.log_of(LEADER)
        return any(log_of(job) == path and job.status.state is JobState.SUCCEEDED for job in seen.jobs)
