"""Block stores as the coordinator sees them: `BlockStore` under the words of `StoreAdapter`.

A look is cheap: the queue follows the index by its changes. Nothing is decided here; batches come from the queue, jobs
from the planner, and what may be replaced by whom is the index's word.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from types import MappingProxyType
from typing import Final

import structlog

from compaction.api.block_store_spec import BlockStore as BlockStoreSpec
from compaction.api.enums import PolicyReason
from compaction.api.job import CompactionJobSpec
from compaction.exceptions import (
    BlockStoreError,
    ClaimRefusedError,
    IndexUnavailableError,
    InvalidAssignmentError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
    SecretError,
    UnknownBlockError,
)
from compaction.planning.block_offers import Offer, offer
from compaction.planning.block_rules import BlockRules, LevelRule
from compaction.planning.reading import BlockFigures, HeldJob, LogProblem, QueuedBlocks, Reading
from compaction.stores.adapter import SWEEP_AGAIN, Sensed, SenseRequest, Swept
from compaction.stores.block_claims import BlockClaims
from compaction.stores.block_cleaner import BlockCleaner
from compaction.stores.blocks.connecting import connection_of
from compaction.stores.blocks.heartbeat import HolderHeartbeat
from compaction.stores.blocks.holders import ThisProcess
from compaction.stores.blocks.index.refusals import Refusal
from compaction.stores.blocks.index.retention import Retention
from compaction.stores.blocks.index.tables import JobState
from compaction.stores.blocks.model import SECOND
from compaction.stores.blocks.schema_book import SchemaBook
from compaction.stores.blocks.store import BlockStore, BlockStoreConnection
from compaction.stores.blocks.waiting import WaitingBlocks
from compaction.stores.secrets import Secrets, reason_of

log = structlog.get_logger(__name__)

PATIENCE: Final = 10.0
"""Seconds for which a look or a claim waits for a database that is away: the next one is not far."""
UNREACHABLE: Final = (ObjectStoreUnavailableError, ObjectAccessError, IndexUnavailableError)


class BlockStoreAdapter:
    """Implements `StoreAdapter`. Keep it while the spec stays: it has the queue, which a new one has to read anew.

    `here`: the process that claims jobs where no cluster does; it gives signs of life from the first look that may
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
        self._opening = Lock()
        self._opened: tuple[BlockStoreConnection, BlockStore] | None = None
        self._former: list[BlockStore] = []
        self._users = 0
        self._closed = False
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
            return self._unreadable(request, PolicyReason.STORE_UNREACHABLE, str(error))
        except BlockStoreError as error:
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
            existing=Counter((job.level, tenant_of_lane(job.lane)) for job in request.jobs.values()),
        )
        outdated, committed = self._outdated(store, waiting, request.jobs)
        due = waiting.queue.next_due()
        reading = Reading(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=now,
            candidates=offered.candidates,
            logs=frozenset(one.path for one in offered.candidates) | committed,
            outdated=outdated,
            identities=self._identities(store, request.quarantined),
            blocks=self._figures(store, waiting, offered),
            left_out=offered.left_out,
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
                log.info("nothing to release from quarantine", block=block, error=str(error))

    def _outdated(
        self, store: BlockStore, waiting: WaitingBlocks, jobs: Mapping[str, HeldJob]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Jobs some of whose blocks wait no more (replaced, expired, set aside), and the lanes of those among them that
        were committed: what is missing there is a word, which the next attempt brings.
        """
        outdated: set[str] = set()
        committed: set[str] = set()
        for name, job in jobs.items():
            if all(block in waiting.queue for block in job.blocks):
                continue
            record = store.job(name)
            if record is not None and record.state is JobState.COMMITTED:
                committed.add(job.lane)
            else:
                outdated.add(name)
        return frozenset(outdated), frozenset(committed)

    def _identities(
        self, store: BlockStore, quarantined: Mapping[str, frozenset[str]]
    ) -> Mapping[tuple[str, str], str]:
        """A block is its own identity as long as the index has it in quarantine."""
        if not quarantined:
            return MappingProxyType({})
        aside = {one.block.id for one in store.quarantined()}
        return MappingProxyType(
            {(lane, block): block if block in aside else "" for lane, blocks in quarantined.items() for block in blocks}
        )

    def _figures(self, store: BlockStore, waiting: WaitingBlocks, offered: Offer) -> BlockFigures:
        live = waiting.density()
        seen = {source for one in offered.candidates for group in one.groups for source in group.sources}
        batches: Counter[tuple[int, str]] = Counter()
        blocks: Counter[tuple[int, str]] = Counter()
        sizes: Counter[tuple[int, str]] = Counter()
        for batch in waiting.queue.batches() if waiting.queue.ready_size > self._most else ():
            if batch.ready is not None and batch.blocks[0].id not in seen:
                key = batch.level, batch.group.key[0].tenant
                batches[key] += 1
                blocks[key] += len(batch.blocks)
                sizes[key] += batch.bytes
        beyond = tuple(QueuedBlocks(*key, blocks[key], sizes[key], batches[key]) for key in sorted(blocks))
        return BlockFigures(live=live.blocks, windows=live.windows, beyond=beyond, conflicts=waiting.conflicts())

    def _unreadable(self, request: SenseRequest, reason: str, message: str) -> Sensed:
        reading = Reading(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=self._wall(),
            problem=LogProblem(self._spec.url, reason, message),
        )
        return Sensed(reading, None)

    # -- the rest of the protocol -------------------------------------------------------------------------------------

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """See `StoreAdapter`. Expires, deletes what is due, collects orphans; `active` attempts are protected by their
        claims, so nothing has to be told of them.
        """
        try:
            with self._store() as store:
                swept = self._cleaner.run(store)
        except (BlockStoreError, SecretError) as error:
            return Swept(0, 0, (LogProblem(self._spec.url, "SweepFailed", str(error)),), SWEEP_AGAIN)
        problems = tuple(LogProblem(where, "SweepFailed", error) for where, error in swept.failures.items())
        return Swept(swept.deleted, swept.bytes, problems, swept.next_in)

    def high_water(self, lane: str, job: str) -> int:
        """See `StoreAdapter`."""
        with self._store() as store:
            return store.high_water(job)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`. A job that was committed needs no claim: its attempt finds the receipt."""
        sources = spec.sources.blocks
        if sources is None:
            raise InvalidAssignmentError(f"job {job}: {spec.kind} names no blocks")
        self._claims.hear_of((job,))
        try:
            with self._store() as store:
                store.claim(
                    job=job,
                    token=token,
                    sources=sources.blocks,
                    output_level=spec.level + 1,
                    holder=self._claims.holder,
                )
        except ClaimRefusedError as error:
            if error.reason != Refusal.JOB_COMMITTED:
                raise

    def retire(self, lane: str, job: str) -> None:
        """See `StoreAdapter`. A process gives up its own claims only: one that was taken over has none."""
        holder = self._claims.holder
        with self._store() as store:
            store.retire(job, holder=None if holder is None else holder.id)

    def close(self) -> None:
        """See `StoreAdapter`. A coordinator ends without waiting for its threads: the last of them closes the store."""
        self._heartbeat.stop()
        if self._opened is not None:
            self._claims.sign_out(self._opened[1])
        with self._opening:
            self._closed = True
            self._let_go()

    def _renew(self) -> None:
        with self._store() as store:
            self._claims.renew(store)

    @contextmanager
    def _store(self) -> Iterator[BlockStore]:
        """The store, opened again when a Secret has changed. Raises SecretError, BlockStoreError."""
        with self._opening:
            store = self._current()
            self._users += 1
        try:
            yield store
        finally:
            with self._opening:
                self._users -= 1
                self._let_go()

    def _current(self) -> BlockStore:
        wanted = connection_of(self._spec.reference, self._secrets)
        if self._opened is not None and self._opened[0] == wanted:
            return self._opened[1]
        store = BlockStore.open(wanted, clock=self._wall, patience=PATIENCE)
        if self._opened is not None:
            self._former.append(self._opened[1])
        self._opened = wanted, store
        return store

    def _let_go(self) -> None:
        """Close what nobody uses any more."""
        if self._users:
            return
        if self._closed and self._opened is not None:
            self._former.append(self._opened[1])
            self._opened = None
        while self._former:
            self._former.pop().close()


def rules_of(spec: BlockStoreSpec, *, max_bytes_per_job: int) -> BlockRules:
    """What a policy says to the queue."""
    levels = tuple(LevelRule(one.max_blocks, float(one.max_age), int(one.max_bytes)) for one in spec.levels)
    return BlockRules(
        levels=levels,
        span=int(float(spec.span) * SECOND),
        strict_gain=not spec.rewrite_single_blocks,
        max_bytes_per_job=max_bytes_per_job,
    )


def retention_of(spec: BlockStoreSpec) -> Retention:
    """What a policy says about how long blocks are kept."""
    keep = spec.retention
    return Retention(
        default=0 if keep.default is None else int(float(keep.default) * SECOND),
        tenants={one.tenant: int(float(one.keep) * SECOND) for one in keep.tenants},
    )


def tenant_of_lane(lane: str) -> str:
    """The tenant in `<tenant>/<shard>/L<level>/<id>`; "" for a lane that somebody made up."""
    parts = lane.rsplit("/", 3)
    return parts[0] if len(parts) == 4 else ""
