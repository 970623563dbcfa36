"""Segment logs under one root, as the rest of the system sees them: sense, claim, rewrite, commit, recover, sweep.

A facade without state but a cache: every method names the log by its directory, inside the root. Safe to use from
several threads and processes at once; whatever changes a log takes that log's lock. See docs/segment-logs.md for what
is promised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compaction.api.policy.segment_logs import Ownership
from compaction.segments import sweep
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.commit import GroupOutcome
from compaction.segments.commit.records import FenceRecord, GroupReceipt, RewrittenGroup, SegmentTombstone
from compaction.segments.directory import lock
from compaction.segments.directory.fs import storage_errors
from compaction.segments.directory.owner import require_stopped
from compaction.segments.errors import NotALogDirectoryError, SegmentLogError, SourcesChangedError
from compaction.segments.format.names import group_key
from compaction.segments.planning.plan import GroupCheck, GroupRanges, LogPlan, plan_log
from compaction.segments.planning.unreferenced import known_live
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.scan.sense import SenseCache, SenseResult, SenseSettings, sense_root
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.storage.pace import UNLIMITED, Pace


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """A group of a job at the moment the job starts: exactly one of `receipt`, `error`, `ranges` is set.

    `receipt`: an earlier attempt committed it. `error`: it must not be rewritten any more. `ranges`: to be rewritten,
    as long as every file is the one that this was found of.
    """

    sources: tuple[str, ...]
    ranges: GroupRanges | None = None
    receipt: GroupReceipt | None = None
    error: SegmentLogError | None = None


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """The work of a job now. `live` is the set that must survive at or below `snapshot_index`; picklable."""

    directory: Path
    snapshot_index: int
    live: LiveSet
    groups: tuple[PreparedGroup, ...]


@dataclass(slots=True)
class SegmentLogStore:
    """The segment logs under `root`. `holder` signs locks and claims; `lock_timeout` in seconds; `clock`: monotonic."""

    root: Path
    settings: SenseSettings = field(default_factory=SenseSettings)
    holder: str = "compactor"
    lock_timeout: float = lock.DEFAULT_TIMEOUT
    clock: Callable[[], float] = time.monotonic
    _cache: SenseCache = field(init=False)

    def __post_init__(self) -> None:
        self._cache = SenseCache(self.root, self.settings, clock=self.clock)

    def directory(self, log: str | os.PathLike[str]) -> Path:
        """The directory of a log given by its path, absolute or relative to the root.

        NotALogDirectoryError when it lies outside of the root, also through a symlink.
        """
        path = self.root / log
        with storage_errors(path):
            # Not Path.resolve, which has an error of its own for links in a circle.
            inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root))
            is_directory = path.is_dir()
        if not inside:
            raise NotALogDirectoryError(str(log), f"it is not inside the store's root {self.root}")
        if not is_directory:
            raise NotALogDirectoryError(str(path), "it does not exist, or is not a directory")
        return path

    def sense(self, *, quarantined: Mapping[Path, frozenset[str]] | None = None) -> SenseResult:
        """Every log under the root and what it would gain; unchanged logs are not read again. Never raises for one
        log.
        """
        return sense_root(self.root, self.settings, quarantined=quarantined, cache=self._cache)

    def plan(self, log: str | os.PathLike[str], *, quarantined: frozenset[str] = frozenset()) -> LogPlan:
        """The plan of one log as it is now. Errors as `open_log` and `plan_log`."""
        directory = self.directory(log)
        with storage_errors(directory):
            return plan_log(
                open_log(directory),
                self.settings.limits,
                quarantined=quarantined,
                awaiting_deletion=frozenset(t.name for t in fence.read(directory).tombstones),
                indexes_missing=self.settings.indexes_missing,
            )

    def high_water(self, log: str | os.PathLike[str], job: str) -> int:
        """The largest token ever accepted for the job in this log; 0 when there was none."""
        return fence.high_water(self.directory(log), job)

    def claim(
        self, log: str | os.PathLike[str], *, job: str, token: int, ownership: Ownership = Ownership.DETECT
    ) -> None:
        """From now on only `token` may commit for the job. StaleTokenError unless it is larger than all before;
        OwnerRunningError when no commit of the job would be accepted now.
        """
        directory = self.directory(log)
        require_stopped(directory, ownership)
        fence.claim(directory, job=job, token=token, holder=self.holder, timeout=self.lock_timeout)

    def retire(self, log: str | os.PathLike[str], job: str) -> None:
        """Nothing may be committed for the job any more; its high water stays. Repeating is harmless."""
        fence.retire(self.directory(log), job, timeout=self.lock_timeout)

    def record(self, log: str | os.PathLike[str]) -> FenceRecord:
        """The log's fence record: claims, receipts, tombstones."""
        return fence.read(self.directory(log))

    def receipts(self, log: str | os.PathLike[str], job: str) -> tuple[GroupReceipt, ...]:
        """Return the commits of the job so far, by all attempts, in commit order."""
        return tuple(r for r in self.record(log).receipts if r.job == job)

    def marked(self, log: str | os.PathLike[str], job: str) -> tuple[SegmentTombstone, ...]:
        """The unreferenced segments that the job has marked for deletion, carried out or not."""
        claim = self.record(log).jobs.get(job)
        return claim.unreferenced if claim else ()

    def recover(self, log: str | os.PathLike[str]) -> recovery.RecoveryReport:
        """Settle whatever a crash left half-done; nothing is done to a healthy log."""
        return recovery.recover(
            self.directory(log), holder=self.holder, ownership=self.settings.ownership, timeout=self.lock_timeout
        )

    def prepare(
        self, log: str | os.PathLike[str], *, job: str, groups: Iterable[Sequence[str]], snapshot_index: int
    ) -> PreparedJob:
        """Recover the log, then find out what is left to do of a job's groups.

        The live set is that of the newest snapshot, which must not be older than the job's: what is live at or below a
        snapshot only ever shrinks.

        Raises:
            OwnerRunningError: the log's owner is not known to be stopped, so nothing could be committed.
            SourcesChangedError: the newest snapshot is older than the plan's.
            RecoveryBlockedError: what a crash left cannot be settled without a user's decision.
            LiveSetUnknownError, CorruptSegmentError, ...: the log as a whole cannot be read.
        """
        directory = self.directory(log)
        require_stopped(directory, self.settings.ownership)
        self.recover(directory).require_settled(directory)
        with storage_errors(directory):
            state = open_log(directory)
        if state.snapshot_index is None or state.snapshot_index < snapshot_index:
            raise SourcesChangedError(
                f"{directory}: the plan was made at snapshot {snapshot_index}, the newest one is {state.snapshot_index}"
            )
        live = known_live(state, self.settings.indexes_missing)
        record, check = fence.read(directory), GroupCheck(state, live)
        prepared: list[PreparedGroup] = []
        for sources in groups:
            names = tuple(sources)
            try:
                if receipt := record.receipt(job, group_key(names)):
                    prepared.append(PreparedGroup(sources=names, receipt=receipt))
                    continue
                prepared.append(PreparedGroup(sources=names, ranges=check.ranges(names)))
            except SegmentLogError as error:
                # As data: the other groups of the job are prepared all the same.
                prepared.append(PreparedGroup(sources=names, error=error))
        return PreparedJob(directory=directory, snapshot_index=state.snapshot_index, live=live, groups=tuple(prepared))

    def rewrite(
        self,
        log: str | os.PathLike[str],
        *,
        group: PreparedGroup,
        live: LiveSet,
        job: str,
        token: int,
        pace: Pace = UNLIMITED,
    ) -> RewrittenGroup:
        """Rewrite and verify one prepared group (see `kernel.rewrite_group`, which a Spark task may call by itself)."""
        return kernel.rewrite_group(
            self.directory(log),
            sources=group.sources,
            live=live,
            limits=self.settings.limits,
            job=job,
            token=token,
            ranges=group.ranges,
            pace=pace,
        )

    def commit(
        self, log: str | os.PathLike[str], *, job: str, token: int, group: RewrittenGroup, now: float | None = None
    ) -> GroupReceipt:
        """Commit a rewritten group, exactly once per job (see `commit.commit_group`)."""
        directory = self.directory(log)
        return commit.commit_group(
            directory,
            job=job,
            token=token,
            group=group,
            holder=self.holder,
            now=now,
            ownership=self.settings.ownership,
            timeout=self.lock_timeout,
        )

    def commit_all(
        self,
        log: str | os.PathLike[str],
        *,
        job: str,
        token: int,
        groups: Sequence[RewrittenGroup],
        now: float | None = None,
    ) -> tuple[GroupOutcome, ...]:
        """Commit what is ready of a job together, each group by itself (see `commit.commit_groups`)."""
        directory = self.directory(log)
        return commit.commit_groups(
            directory,
            job=job,
            token=token,
            groups=groups,
            holder=self.holder,
            now=now,
            ownership=self.settings.ownership,
            timeout=self.lock_timeout,
        )

    def commit_unreferenced(
        self, log: str | os.PathLike[str], *, job: str, token: int, names: Iterable[str], now: float | None = None
    ) -> tuple[SegmentTombstone, ...]:
        """Mark segments without anything live for deletion (see `commit.commit_unreferenced`)."""
        return commit.commit_unreferenced(
            self.directory(log),
            job=job,
            token=token,
            names=names,
            holder=self.holder,
            now=now,
            indexes_missing=self.settings.indexes_missing,
            ownership=self.settings.ownership,
            timeout=self.lock_timeout,
        )

    def sweep(
        self,
        log: str | os.PathLike[str],
        *,
        grace_seconds: float,
        active: frozenset[tuple[str, int]] | None = None,
        now: float | None = None,
    ) -> sweep.SweepReport:
        """Delete what was replaced longer than the grace ago. `active`: (job, token) of attempts that may be
        running; None: unknown.
        """
        return sweep.sweep(
            self.directory(log),
            now=now,
            grace_seconds=grace_seconds,
            active=active,
            indexes_missing=self.settings.indexes_missing,
            ownership=self.settings.ownership,
            holder=self.holder,
            timeout=self.lock_timeout,
        )
