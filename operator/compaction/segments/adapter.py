"""The adapter of segment logs: `SegmentLogStore` in the words of `StoreAdapter`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from compaction.api.enums import PolicyReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.segment_logs import Ownership, SegmentLogsSpec
from compaction.api.text.printing import INT64_MAX
from compaction.core.planning.candidates import Candidate, GroupCandidate, LeftAlonePart, ObsoleteSource
from compaction.core.planning.debt import ScanResult, TargetProblem
from compaction.core.planning.planner import LeftOut
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError, InvalidAssignmentError, StaleTokenError
from compaction.segments.directory.fs import fault_of
from compaction.segments.errors import LockHeldError, NotALogDirectoryError, OwnerRunningError, SegmentLogError
from compaction.segments.kind import MISSING, tenant_of
from compaction.segments.model import FileIdentity
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits
from compaction.segments.reasons import SegmentReason
from compaction.segments.scan.find import LogError, LogErrorReason
from compaction.segments.scan.sense import LogDebt, SenseResult, SenseSettings
from compaction.segments.store import SegmentLogStore
from compaction.storage.adapter import SWEEP_AGAIN, OpenRequest, Sensed, SenseRequest, StoreAdapter, Swept


class SegmentLogsAdapter:
    """Implements `StoreAdapter`. Keep it while the spec stays: it remembers logs that did not change."""

    def __init__(
        self,
        spec: SegmentLogsSpec,
        *,
        grace: float,
        holder: str,
        lock_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = SenseSettings(
            include=spec.include,
            exclude=spec.exclude,
            limits=SegmentLimits(
                spec.max_entries_per_segment, int(spec.max_bytes_per_segment), spec.max_sources_per_group
            ),
            indexes_missing=IndexesMissing(spec.when_indexes_missing.value),
            ownership=spec.ownership,
        )
        self._root = Path(spec.root)
        self._grace = grace
        self._clock = clock
        self._store = SegmentLogStore(self._root, settings, holder=holder, lock_timeout=lock_timeout, clock=clock)
        self._to_sweep: frozenset[str] = frozenset()
        self._ahead = 0.0
        self._offered: dict[Path, tuple[LogDebt, Candidate]] = {}

    def sense(self, request: SenseRequest) -> Sensed:
        """See `StoreAdapter`. Logs that a crash left half-done are recovered first, and then read again."""
        started = request.asked
        quarantined = {Path(log): names for log, names in request.quarantined.items()}
        problems: list[TargetProblem] = []
        try:
            result = self._store.sense(quarantined=quarantined)
            if not request.recover:
                problems += [_half_done(log) for log in _stopped(result) if log.needs_recovery]
            elif self._recover(result, request.busy, problems):
                result = self._store.sense(quarantined=quarantined)
        except CompactionError as error:
            return self._unreadable(request, TargetProblem(str(self._root), PolicyReason.SENSE_FAILED, str(error)))
        root_problem = next((self._root_problem(e) for e in result.errors if e.path == self._root), None)
        if root_problem is not None and not result.logs:
            return self._unreadable(request, root_problem)
        # One problem for each log: that of its half-done commit stands for the error of the reading.
        reported = {problem.target for problem in problems}
        problems += [
            TargetProblem(str(error.path), error.reason, error.message)
            for error in result.errors
            if str(error.path) not in reported
        ]
        problems += [_unnameable_snapshot(log) for log in result.logs if _out_of_range(log)]
        candidates = self._candidates(result, started)
        self._to_sweep = frozenset(str(log.path) for log in _stopped(result) if log.tombstones or log.partials)
        reading = ScanResult(
            number=request.number,
            generation=request.generation,
            started=started,
            ended=self._clock(),
            wall=time.time(),
            candidates=candidates,
            problems=tuple(problems),
            targets=frozenset(str(log.path) for log in result.logs) | {problem.target for problem in problems},
            identities=MappingProxyType(
                {
                    (log, name): identity_of(Path(log) / name)
                    for log, names in request.quarantined.items()
                    for name in names
                }
            ),
            left_out=_left_out(result),
            measures=MappingProxyType({MISSING.name: sum(log.missing.entries for log in result.logs)}),
        )
        return Sensed(reading, self._sweep_in(result), self._overdue(result))

    def _recover(self, result: SenseResult, busy: frozenset[str], problems: list[TargetProblem]) -> bool:
        recovered = False
        for log in _stopped(result):
            if not log.needs_recovery or str(log.path) in busy:
                continue
            try:
                self._store.recover(log.path).require_settled(log.path)
                recovered = True
            except (LockHeldError, OwnerRunningError):
                continue  # somebody is at it: what looks half-done is being done
            except CompactionError as error:
                problems.append(TargetProblem(str(log.path), "RecoveryFailed", str(error)))
            except Exception as error:  # noqa: BLE001 - at one log: its siblings are recovered
                problems.append(TargetProblem(str(log.path), "RecoveryFailed", str(fault_of(error, log.path))))
        return recovered

    def _unreadable(self, request: SenseRequest, problem: TargetProblem) -> Sensed:
        reading = ScanResult(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=time.time(),
            problem=problem,
        )
        return Sensed(reading, None)

    def _root_problem(self, error: LogError) -> TargetProblem:
        root = str(self._root)
        match error.reason:
            case LogErrorReason.NOT_FOUND:
                message = f"{root} does not exist where the operator runs: create or mount it, or correct root"
                return TargetProblem(root, SegmentReason.ROOT_NOT_FOUND, message)
            case LogErrorReason.NOT_A_DIRECTORY:
                message = f"{root} is not a directory: set root to the directory that holds the logs"
                return TargetProblem(root, SegmentReason.ROOT_NOT_A_DIRECTORY, message)
            case LogErrorReason.PERMISSION_DENIED:
                message = f"{error.message}: give the operator's account permission to read and write {root}"
                return TargetProblem(root, PolicyReason.PERMISSION_DENIED, message)
            case _:
                return TargetProblem(root, PolicyReason.SENSE_FAILED, error.message)

    def _candidates(self, result: SenseResult, started: float) -> tuple[Candidate, ...]:
        """Return the candidate of each log; compute it again only for logs that were read again."""
        before, self._offered = self._offered, {}
        for log in _stopped(result):
            if log.needs_recovery or _out_of_range(log):
                continue
            known = before.get(log.path)
            same = known is not None and known[0] is log
            candidate = replace(known[1], sensed_at=started) if known and same else self._candidate(log, started)
            self._offered[log.path] = (log, candidate)
        return tuple(candidate for _, candidate in self._offered.values())

    def _candidate(self, log: LogDebt, started: float) -> Candidate:
        path = str(log.path)
        return Candidate(
            target=path,
            tenant=tenant_of(str(self._root), path),
            base_version=str(log.snapshot_index or 0),
            groups=tuple(
                GroupCandidate(
                    sources=group.sources,
                    identities=tuple(log.identities[name] for name in group.sources),
                    copy_bytes=group.live_bytes,
                    gain_bytes=group.reclaimable_bytes,
                )
                for group in log.plan.groups
            ),
            obsolete=tuple(
                ObsoleteSource(item.name, log.identities[item.name], item.bytes) for item in log.plan.unreferenced
            ),
            debt_bytes=log.bytes,
            debt_sources=log.segments,
            sensed_at=started,
            oldest_debt_at=log.oldest_debt_at,
            left_alone=tuple(_left_alone(item.name, item.reason) for item in log.plan.left_alone),
        )

    def _sweep_in(self, result: SenseResult) -> float | None:
        now = time.time() + self._ahead
        due = [wait for log in _stopped(result) if (wait := log.sweep_in(now, self._grace)) is not None]
        # Which of them are orphans only the sweep can tell, under the lock; a wait counted from now would never end.
        due += [0.0 for log in _stopped(result) if log.partials]
        return max(0.0, min(due)) if due else None

    def _overdue(self, result: SenseResult) -> float:
        now = time.time() + self._ahead
        return max((log.overdue(now, self._grace) for log in _stopped(result)), default=0.0)

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """See `StoreAdapter`. Reads the logs in which the last reading found something to delete."""
        deleted = freed = 0
        problems: list[TargetProblem] = []
        due: list[float] = []
        for log in sorted(self._to_sweep):
            try:
                report = self._store.sweep(log, grace_seconds=self._grace, active=active)
            except OwnerRunningError as error:
                problems.append(TargetProblem(log, LogErrorReason.OWNER_RUNNING, str(error)))
                continue
            except CompactionError as error:
                problems.append(TargetProblem(log, "SweepFailed", str(error)))
                continue
            except Exception as error:  # noqa: BLE001 - at one log: its siblings are swept
                problems.append(TargetProblem(log, "SweepFailed", str(fault_of(error, Path(log)))))
                continue
            deleted += len(report.deleted)
            freed += report.bytes_reclaimed
            # Graces are measured by the clock of the file system, which may be another machine's.
            self._ahead = report.now - time.time()
            if report.next_due is not None:
                due.append(max(report.next_due - report.now, SWEEP_AGAIN if report.blocked else 0.0))
        if problems:
            due.append(SWEEP_AGAIN)
        return Swept(deleted, freed, tuple(problems), min(due, default=None))

    def close(self) -> None:
        """See `StoreAdapter`: files are open only while something is done with them."""

    def high_water(self, target: str, job: str) -> int:
        """See `StoreAdapter`."""
        with claiming():
            return self._store.high_water(target, job)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`."""
        sources = spec.sources.segment_log
        if sources is None:
            raise InvalidAssignmentError(f"job {job}: {spec.kind} names no segment log")
        # By what the job itself was told: it is what its worker goes by.
        ownership = Ownership.STOPPED if sources.clump is not None else spec.segment_log_parameters.ownership
        with claiming():
            self._store.claim(sources.path, job=job, token=token, ownership=ownership)

    def retire(self, target: str, job: str) -> None:
        """See `StoreAdapter`."""
        self._store.retire(target, job)


def open_adapter(request: OpenRequest) -> StoreAdapter:
    """See `storage.adapter.OpenAdapter`."""
    spec = request.spec.store.segment_logs
    assert spec is not None, "the kind is chosen by this member"
    return SegmentLogsAdapter(
        spec, grace=request.grace, holder=request.holder, lock_timeout=request.lock_timeout, clock=request.clock
    )


@contextmanager
def claiming() -> Iterator[None]:
    """The errors of a claim in the words of every store. A stale token stays what it is."""
    try:
        yield
    except OwnerRunningError as error:
        raise ClaimRefusedError(ClaimRefusal.BUSY, str(error), SegmentReason.OWNER_RUNNING) from error
    except LockHeldError as error:
        raise ClaimRefusedError(ClaimRefusal.BUSY, str(error), SegmentReason.LOCK_HELD) from error
    except NotALogDirectoryError as error:
        raise ClaimRefusedError(ClaimRefusal.GONE, str(error)) from error
    except StaleTokenError:
        # Before SegmentLogError, its other base class: a claim that lost to a newer one is no error of the store.
        raise
    except SegmentLogError as error:
        raise ClaimRefusedError(ClaimRefusal.ERROR, str(error)) from error


def _stopped(result: SenseResult) -> Iterator[LogDebt]:
    """The logs that may be changed."""
    return (log for log in result.logs if log.path not in result.running)


def _left_out(result: SenseResult) -> tuple[LeftOut, ...]:
    running = result.running
    return (LeftOut(SegmentReason.OWNER_RUNNING, len(running), str(min(running))),) if running else ()


def identity_of(path: Path) -> str:
    """Return the mark of one version of a file (device, inode, size, modification time); "" when the file is gone."""
    try:
        return str(FileIdentity.of(os.stat(path, follow_symlinks=False)))
    except OSError:
        return ""


@lru_cache(maxsize=100_000)
def _left_alone(name: str, reason: str) -> LeftAlonePart:
    """One object for all logs: names of segments are the same few everywhere."""
    return LeftAlonePart(name, reason)


def _half_done(log: LogDebt) -> TargetProblem:
    message = f"{log.path}: a compaction was interrupted; the next run settles it before anything is planned"
    return TargetProblem(str(log.path), "NeedsRecovery", message)


def _out_of_range(log: LogDebt) -> bool:
    """Segment logs count in 64 bits without a sign, resources with one."""
    return log.snapshot_index is not None and log.snapshot_index > INT64_MAX


def _unnameable_snapshot(log: LogDebt) -> TargetProblem:
    message = (
        f"{log.path}: its snapshot is of index {log.snapshot_index}, and no job can name one above {INT64_MAX}: "
        "no owner gets there by counting, so restore its snapshots, or use `compactor segments compact`"
    )
    return TargetProblem(str(log.path), LogErrorReason.LOG_INVALID, message)
