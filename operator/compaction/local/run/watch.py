"""`compactor run --watch`: a policy is kept compacted, as it says, until a user stops it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from compaction.api.enums import JobState
from compaction.api.policy.resource import CompactionPolicy
from compaction.local.run.coordinator import LocalCoordinator
from compaction.local.run.news import News
from compaction.local.run.objects import LocalObjects
from compaction.storage.adapter import StoreAdapter
from compaction.worker.ports import JobRunner

REREAD_SECONDS: Final = 1.0
"""How often the policy is asked for again."""


class LocalWatch:
    """Keeps one store compacted until `stop` is called.

    Args:
        open_store: the store as a policy describes it; called again when the spec changes.
        open_runner: starts the engine; called when there is work, closed when it was idle for `workers.idleSeconds`.
        reread: the policy as it stands now, or None when it has not changed; called about once a second.
        tell: called with each message, in the thread of `run`.
        progress: called with (job, bytes to copy, percent), in the thread of `run`.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        *,
        open_store: Callable[[CompactionPolicy], StoreAdapter],
        open_runner: Callable[[CompactionPolicy], AbstractContextManager[JobRunner]],
        reread: Callable[[], CompactionPolicy | None] = lambda: None,
        tell: Callable[[News], None] = lambda news: None,
        progress: Callable[[str, int, int], None] = lambda job, cost, percent: None,
    ) -> None:
        self._open_store = open_store
        self._reread = reread
        self._asked_at = 0.0
        self._coordinator = LocalCoordinator(
            policy, store=open_store(policy), open_runner=open_runner, tell=tell, progress=progress
        )

    @property
    def objects(self) -> LocalObjects:
        """The policy and its jobs as they stand."""
        return self._coordinator.objects

    @property
    def deleted(self) -> int:
        """How many replaced sources were deleted."""
        return self._coordinator.swept.deleted

    def stop(self) -> None:
        """End soon: running jobs stop before their next commit. May be called from a signal handler."""
        self._coordinator.stop()

    def run(self) -> None:
        """Scan, plan, compact, delete; returns after `stop`."""
        with self._coordinator as coordinator:
            while not coordinator.stopped:
                coordinator.wait(self.step())
        coordinator.store.close()

    def step(self) -> float:
        """One decision, carried out; seconds until the next one is due by itself."""
        self._ask_for_policy()
        due = self._coordinator.step()
        idle = self._idle_seconds_left()
        return min(seconds for seconds in (due, idle, REREAD_SECONDS) if seconds is not None)

    def _ask_for_policy(self) -> None:
        now = time.monotonic()
        if now - self._asked_at < REREAD_SECONDS:
            return
        self._asked_at = now
        wanted = self._reread()
        if wanted is None:
            return
        generation = self.objects.policy.metadata.generation
        self.objects.replace_policy(wanted)
        if self.objects.policy.metadata.generation != generation:
            self._coordinator.store.close()
            self._coordinator.store = self._open_store(wanted)
        self._coordinator.say(News("PolicyChanged", "the changed policy is in force"))

    def _idle_seconds_left(self) -> float | None:
        """Seconds until the engine is closed because nothing needs it; closes it when they are over."""
        workers = self._coordinator.workers
        if workers.worker is None or workers.worker.ended:
            return None
        if any(job.status.state is JobState.IN_PROGRESS for job in self.objects.jobs.values()):
            workers.note_need()
            return None
        left = self.objects.policy.spec.workers.idle_seconds - workers.idle_seconds()
        if left > 0:
            return left
        workers.close()
        self._coordinator.say(News("WorkerStopped", "Spark was stopped: no job for a while"))
        return None
