"""The adapter of block stores: `BlockStore` in the words of `StoreAdapter`, and when a store is cleaned."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from compaction.api.enums import PolicyReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.block_store import BlockStoreSpec as BlockStoreSpec
from compaction.api.text.printing import plural, printable
from compaction.blocks.claiming import BlockClaims, HolderHeartbeat, claiming
from compaction.blocks.connecting import connection_of
from compaction.blocks.errors import BlockStoreError, UnknownBlockError
from compaction.blocks.index.tables import IndexJobState
from compaction.blocks.index.tombstones import RetentionPeriods, next_due
from compaction.blocks.kind import measures_of
from compaction.blocks.model import SECOND, tenant_of_target
from compaction.blocks.planning.batches import BlockRules, LevelRule
from compaction.blocks.planning.offers import OfferedCandidates, offer
from compaction.blocks.schema.book import SchemaBook
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep.cleaning import expire_all, housekeeping, sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans
from compaction.blocks.waiting import WaitingBlocks
from compaction.core.planning.debt import Conflict, HeldJob, ScanResult, TargetProblem, UnofferedDebt
from compaction.errors import InvalidAssignmentError
from compaction.storage.adapter import SWEEP_AGAIN, OpenRequest, Sensed, SenseRequest, StoreAdapter, Swept
from compaction.storage.errors import (
    DatabaseUnavailableError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
    SecretError,
    StorageError,
)
from compaction.storage.opened import KeptOpen, ThisProcess, explaining
from compaction.storage.secrets import Secrets, reason_of

# The schedule by which a block store is cleaned, and what of it is due: replaced and expired blocks after their grace,
# orphans now and then, memories of what ended long ago. What is done is `blocks/sweep/cleaning.py`.
#
# Every part is tried at every run that finds it due; one that fails is said, and does not keep the others from it.

EXPIRY_EVERY: Final = 60.0
"""Seconds between looks for expired blocks: one query, when nothing has expired."""
ORPHANS_EVERY: Final = 6 * 3600.0
"""Seconds between searches for orphans: each lists the whole store."""
FIRST_ORPHANS: Final = 900.0
"""A coordinator that has just begun has other things to do first."""


@dataclass(slots=True)
class CleanupResult:
    """The result of one cleanup run. `failures`: what was not cleaned (a path, or the store), and why."""

    deleted: int = 0
    bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    next_in: float = SWEEP_AGAIN


class UpcomingClean(NamedTuple):
    """Seconds until something is due, and for how many seconds the oldest deletion has been."""

    next_in: float
    overdue: float


class BlockCleaner:
    """The clock of one store's cleaning. `grace` in seconds; `clock`: monotonic seconds."""

    def __init__(self, *, grace: float, retention: RetentionPeriods, clock: Callable[[], float]) -> None:
        self._grace = int(grace * SECOND)
        self._retention = retention
        self._clock = clock
        self._expiry_due = clock()
        self._orphans_due = clock() + FIRST_ORPHANS

    def upcoming(self, store: BlockStore) -> UpcomingClean:
        """Return the time at which something is due, and the delay of what is late. Raises DatabaseError."""
        now = self._clock()
        moments = [self._orphans_due - now]
        if self._keeps_for_a_time:
            moments.append(self._expiry_due - now)
        overdue = 0.0
        if (due := next_due(store.index, grace=self._grace)) is not None:
            deletion = (due - store.now()) / SECOND
            moments.append(deletion)
            overdue = max(0.0, -deletion)
        return UpcomingClean(max(0.0, min(moments)), overdue)

    def run(self, store: BlockStore) -> CleanupResult:
        """Do everything that is due. Failures of a part are in the result; it is tried again soon."""
        done = CleanupResult()
        now = self._clock()
        if self._keeps_for_a_time and now >= self._expiry_due:
            self._try(store, done, self._expire)
        self._try(store, done, self._sweep)
        if now >= self._orphans_due:
            self._try(store, done, self._collect)
        try:
            wait = self.upcoming(store).next_in
        except (BlockStoreError, StorageError) as error:
            # Only the index knows when something is due: without an answer the cleaner returns after the usual pause.
            done.failures[store.objects.url] = str(error)
            wait = SWEEP_AGAIN
        done.next_in = max(wait, SWEEP_AGAIN) if done.failures else wait
        return done

    @property
    def _keeps_for_a_time(self) -> bool:
        return bool(self._retention.default or self._retention.tenants)

    def _expire(self, store: BlockStore, done: CleanupResult) -> None:
        expire_all(store.index, self._retention, clock=store.now)
        self._expiry_due = self._clock() + EXPIRY_EVERY

    def _sweep(self, store: BlockStore, done: CleanupResult) -> None:
        cleaned = sweep(store.objects, store.index, now=store.now(), grace=self._grace)
        done.deleted += cleaned.blocks
        done.bytes += cleaned.bytes
        done.failures |= _said(cleaned.failed, "block ")

    def _collect(self, store: BlockStore, done: CleanupResult) -> None:
        collected = collect_orphans(store.objects, store.index, now=store.now())
        housekeeping(store.index, now=store.now())
        done.deleted += collected.objects
        done.bytes += collected.bytes
        done.failures |= _said(collected.failed, "")
        # The limit ended the search: the next run continues at once instead of after the interval.
        if not collected.more:
            self._orphans_due = self._clock() + ORPHANS_EVERY

    @staticmethod
    def _try(store: BlockStore, done: CleanupResult, part: Callable[[BlockStore, CleanupResult], None]) -> None:
        try:
            part(store, done)
        except (BlockStoreError, StorageError) as error:
            # Expiry, sweep and orphans do not depend on each other: the next part runs all the same.
            done.failures[store.objects.url] = str(error)


def _said(failed: Mapping[str, str], noun: str) -> dict[str, str]:
    """Describe the failed deletions, those with the same reason by the first of them: a store that refuses deletions
    refuses a thousand in a request.
    """
    alike: dict[str, list[str]] = {}
    for item, reason in failed.items():
        alike.setdefault(reason, []).append(item)
    return {
        ones[0]: f"{noun}{ones[0]}{f' and {len(ones) - 1} more' if ones[1:] else ''} could not be deleted: {reason}"
        for reason, ones in alike.items()
    }


# The adapter of block stores: `BlockStore` in the words of `StoreAdapter`.
#
# A scan is cheap: the queue follows the index by its changes. Nothing is decided here; batches come from the queue,
# jobs from the planner, and what may be replaced by whom is the index's word.

log = structlog.get_logger(__name__)

PATIENCE: Final = 10.0
"""Seconds for which a scan or a claim waits for a database that is away: the next one is not far."""
UNREACHABLE: Final = (ObjectStoreUnavailableError, ObjectAccessError, DatabaseUnavailableError)


class BlockStoreAdapter:
    """Implements `StoreAdapter`. Keep it while the spec stays: it has the queue, which a new one has to read again.

    `here`: the process that claims jobs where no cluster does; it gives signs of life from the first scan that may
    change something until `close`.
    """

    def __init__(
        self,
        spec: BlockStoreSpec,
        *,
        grace: float,
        max_bytes_per_job: int,
        max_jobs_queued: int,
        secrets: Secrets,
        here: ThisProcess | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._spec = spec
        self._most = max_jobs_queued
        self._secrets = secrets
        self._claims = BlockClaims(here)
        self._heartbeat = HolderHeartbeat(self._renew)
        self._clock = clock
        self._wall = wall
        self._rules = rules_of(spec, max_bytes_per_job=max_bytes_per_job)
        self._opened: KeptOpen[BlockStoreConnection, BlockStore] = KeptOpen(self._open)
        self._waiting: tuple[SchemaBook, WaitingBlocks] | None = None
        self._cleaner = BlockCleaner(grace=grace, retention=retention_of(spec), clock=clock)

    # -- looks --------------------------------------------------------------------------------------------------------

    def sense(self, request: SenseRequest) -> Sensed:
        """See `StoreAdapter`. Claims of jobs that are no more are given up; releases are carried out."""
        try:
            with self._store() as store:
                return self._sense(request, store)
        except SecretError as error:
            return self._unreadable(request, reason_of(error), str(error))
        except UNREACHABLE as error:
            # Before the next clause, which has these errors too: an outage has a reason of its own.
            return self._unreadable(request, PolicyReason.STORE_UNREACHABLE, str(error))
        except (BlockStoreError, StorageError) as error:
            return self._unreadable(request, PolicyReason.SENSE_FAILED, str(error))

    def _sense(self, request: SenseRequest, store: BlockStore) -> Sensed:
        self._claims.hear_of(request.jobs)
        if request.recover:
            if self._claims.holder is not None:
                self._heartbeat.start()
            self._release(store, request.released)
            waited = (self._clock() - request.asked) * SECOND
            self._claims.retire_strays(store, request.jobs, waited=waited)
        if self._waiting is None or self._waiting[0].store is not store:
            # The store was opened again: what was read from another connection may be of another index.
            book = SchemaBook(store)
            self._waiting = book, WaitingBlocks(store.index, self._rules, book.look_up)
        book, waiting = self._waiting
        book.keeps = request.recover
        waiting.refresh(request.jobs.values())
        now = self._wall()
        offered = offer(
            waiting.queue,
            now=now,
            sensed_at=request.asked,
            most=self._most,
            existing=Counter((job.level, tenant_of_target(job.target)) for job in request.jobs.values()),
        )
        outdated, committed = self._outdated(store, waiting, request.jobs)
        # After `offer`, which lets everything in the queue happen that is due by now.
        due = waiting.queue.next_due()
        density, beyond = waiting.density(), self._beyond(waiting, offered)
        reading = ScanResult(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=now,
            candidates=offered.candidates,
            targets=frozenset(candidate.target for candidate in offered.candidates) | committed,
            outdated=outdated,
            identities=self._identities(store, request.quarantined),
            measures=measures_of(
                live=density.blocks, windows=density.windows, candidates=offered.candidates, beyond=beyond
            ),
            beyond=beyond,
            conflicts=tuple(
                Conflict(conflict.tenant, conflict.schemas, conflict.blocks, str(conflict), conflict.alone)
                for conflict in waiting.conflicts()
            ),
            left_out=offered.left_out,
            problems=tuple(
                TargetProblem(
                    printable(f"{tenant}/{shard}"),
                    PolicyReason.SENSE_FAILED,
                    f"compaction passes over {plural(count, 'block')}: {why}; register the rows in new files",
                )
                for (tenant, shard), (why, count) in waiting.parked().items()
            ),
        )
        upcoming = self._cleaner.upcoming(store)
        return Sensed(
            reading,
            upcoming.next_in,
            overdue=upcoming.overdue,
            look_in=None if due is None else max(0.0, due - now),
        )

    def _release(self, store: BlockStore, released: Iterable[tuple[str, str]]) -> None:
        for _, block in released:
            try:
                store.release(block)
            except UnknownBlockError as error:
                # A repeated request, or a block that is gone: both leave nothing to do.
                log.info("nothing to release from quarantine", block=block, error=str(error))

    def _outdated(
        self, store: BlockStore, waiting: WaitingBlocks, jobs: Mapping[str, HeldJob]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Jobs some of whose blocks wait no more (replaced, expired, in quarantine), and the targets of those among
        them that were committed: what is missing there is a word, which the next attempt brings.
        """
        outdated: set[str] = set()
        committed: set[str] = set()
        for name, job in jobs.items():
            if all(block in waiting.queue for block in job.sources):
                continue
            record = store.job(name)
            if record is not None and record.state is IndexJobState.COMMITTED:
                committed.add(job.target)
            else:
                outdated.add(name)
        return frozenset(outdated), frozenset(committed)

    def _identities(
        self, store: BlockStore, quarantined: Mapping[str, frozenset[str]]
    ) -> Mapping[tuple[str, str], str]:
        """A block is its own identity as long as the index has it in quarantine."""
        if not quarantined:
            return MappingProxyType({})
        aside = {item.block.id for item in store.quarantined()}
        return MappingProxyType(
            {
                (target, block): block if block in aside else ""
                for target, blocks in quarantined.items()
                for block in blocks
            }
        )

    def _beyond(self, waiting: WaitingBlocks, offered: OfferedCandidates) -> tuple[UnofferedDebt, ...]:
        """Return the debt that is due and in no candidate because the number of candidates is limited."""
        seen = {source for candidate in offered.candidates for group in candidate.groups for source in group.sources}
        batches: Counter[tuple[int, str]] = Counter()
        blocks: Counter[tuple[int, str]] = Counter()
        sizes: Counter[tuple[int, str]] = Counter()
        for batch in waiting.queue.batches() if waiting.queue.ready_size > self._most else ():
            if batch.ready is not None and batch.blocks[0].id not in seen:
                key = batch.level, batch.group.key[0].tenant
                batches[key] += 1
                blocks[key] += len(batch.blocks)
                sizes[key] += batch.bytes
        return tuple(UnofferedDebt(*key, blocks[key], sizes[key], batches[key]) for key in sorted(blocks))

    def _unreadable(self, request: SenseRequest, reason: str, message: str) -> Sensed:
        reading = ScanResult(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=self._wall(),
            problem=TargetProblem(self._spec.url, reason, message),
        )
        return Sensed(reading, None)

    # -- the rest of the protocol -------------------------------------------------------------------------------------

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """See `StoreAdapter`. Expires, deletes what is due, collects orphans; `active` attempts are protected by their
        claims, so no one has to report them.
        """
        try:
            with self._store() as store:
                swept = self._cleaner.run(store)
        except (BlockStoreError, StorageError) as error:
            return Swept(0, 0, (TargetProblem(self._spec.url, "SweepFailed", str(error)),), SWEEP_AGAIN)
        problems = tuple(TargetProblem(where, "SweepFailed", error) for where, error in swept.failures.items())
        return Swept(swept.deleted, swept.bytes, problems, swept.next_in)

    def high_water(self, target: str, job: str) -> int:
        """See `StoreAdapter`."""
        with claiming(), self._store() as store:
            return store.high_water(job)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`. A job that was committed needs no claim: its attempt finds the receipt."""
        sources = spec.sources.blocks
        if sources is None:
            raise InvalidAssignmentError(f"job {job}: {spec.kind} names no blocks")
        self._claims.hear_of((job,))
        with claiming(), self._store() as store:
            store.claim(
                job=job,
                token=token,
                sources=sources.blocks,
                output_level=spec.level + 1,
                holder=self._claims.holder,
            )

    def retire(self, target: str, job: str) -> None:
        """See `StoreAdapter`. A process gives up its own claims only: one that was taken over has none."""
        holder = self._claims.holder
        with self._store() as store:
            store.retire(job, holder=None if holder is None else holder.id)

    def close(self) -> None:
        """See `StoreAdapter`. A coordinator ends without waiting for its threads: the last of them closes the store."""
        self._heartbeat.stop()
        store = self._opened.current
        if store is not None:
            self._claims.sign_out(store)
        self._opened.close()

    def _renew(self) -> None:
        with self._store() as store:
            self._claims.renew(store)

    @contextmanager
    def _store(self) -> Iterator[BlockStore]:
        """The store, opened again when a Secret has changed. Raises SecretError, BlockStoreError."""
        wanted = connection_of(self._spec.reference, self._secrets)
        with explaining(wanted.address), self._opened.use(wanted) as store:
            yield store

    def _open(self, wanted: BlockStoreConnection) -> BlockStore:
        return BlockStore.open(wanted, clock=self._wall, patience=PATIENCE)


def open_adapter(request: OpenRequest) -> StoreAdapter:
    """See `storage.adapter.OpenAdapter`."""
    spec, limits = request.spec.store.block_store, request.spec.limits
    assert spec is not None, "the kind is chosen by this member"
    return BlockStoreAdapter(
        spec,
        grace=request.grace,
        max_bytes_per_job=int(limits.max_bytes_per_job),
        max_jobs_queued=limits.max_jobs_queued,
        secrets=request.secrets,
        here=request.here,
        clock=request.clock,
    )


def rules_of(spec: BlockStoreSpec, *, max_bytes_per_job: int) -> BlockRules:
    """Return the rules that a policy sets for the queue."""
    levels = tuple(LevelRule(level.max_blocks, float(level.max_age), int(level.max_bytes)) for level in spec.levels)
    return BlockRules(
        levels=levels,
        span=int(float(spec.span) * SECOND),
        strict_gain=not spec.rewrite_single_blocks,
        max_bytes_per_job=max_bytes_per_job,
    )


def retention_of(spec: BlockStoreSpec) -> RetentionPeriods:
    """Return the periods for which a policy keeps blocks."""
    keep = spec.retention
    return RetentionPeriods(
        default=0 if keep.default is None else int(float(keep.default) * SECOND),
        tenants={tenant.tenant: int(float(tenant.keep) * SECOND) for tenant in keep.tenants},
    )
