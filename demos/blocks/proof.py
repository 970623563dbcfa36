"""The verdict on the demo of block stores: one check for each claim, from writers, reader, index and objects."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from compaction.api.enums import JobState
from compaction.api.job.job import JobReceipt
from compaction.blocks.errors import CorruptBlockError, SnapshotExpiredError
from compaction.blocks.fingerprint.row_hashes import Fingerprinter
from compaction.blocks.index.tombstones import summary
from compaction.blocks.kind import BLOCKS, READS
from compaction.blocks.model import SECOND, Block, RowFingerprint, parse_block_path
from compaction.blocks.reader import BlockReader, BlockSnapshot
from compaction.blocks.store import BlockStore
from compaction.errors import CompactionError
from compaction.local.tenants import Check
from demos.blocks.writers import NOTHING, SPAN_HOURS, TOP_LEVEL, Ledger, LedgerEntries
from demos.cluster import Accident, DemoObservation

# The contents of the store at one moment, from its index and its objects alone.

_SPAN: Final = SPAN_HOURS * 3600 * SECOND


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One reading of the store. `aside`: ids of quarantined blocks; `tombstones`: replaced blocks whose objects are not
    deleted yet.
    """

    live: tuple[Block, ...]
    aside: frozenset[str] = frozenset()
    tombstones: int = 0

    @property
    def by_level(self) -> Mapping[str, Mapping[int, int]]:
        """Live blocks of each tenant, by level."""
        counts: dict[str, Counter[int]] = {}
        for block in self.live:
            counts.setdefault(block.tenant, Counter())[block.level] += 1
        return counts

    def of(self, tenant: str) -> int:
        """Live blocks of a tenant."""
        return sum(self.by_level.get(tenant, {}).values())

    @property
    def mergeable(self) -> int:
        """Blocks that will be merged although nothing arrives: where only one of a window is left below the top level,
        it waits for another one, and where there are two, they are merged when they are old enough.
        """
        waiting = Counter(
            (block.tenant, block.shard, block.min_time // _SPAN)
            for block in self.live
            if block.level < TOP_LEVEL and block.id not in self.aside
        )
        return sum(count for count in waiting.values() if count > 1)


def look(store: BlockStore) -> StoreFacts:
    """The store as its index knows it. Raises DatabaseUnavailableError, DatabaseError."""
    aside = frozenset(item.block.id for item in store.quarantined())
    return StoreFacts(store.live().blocks, aside, summary(store.index).blocks)


@dataclass(frozen=True, slots=True)
class Stray:
    """Objects and blocks that do not match: neither is to be when all has ended."""

    objects: tuple[str, ...] = field(default=())
    blocks: tuple[str, ...] = field(default=())

    @property
    def none(self) -> bool:
        return not (self.objects or self.blocks)


def compare(store: BlockStore) -> Stray:
    """Objects at paths of blocks that are no live blocks, and live blocks that have no object."""
    objects = {item.path for item in store.objects.list() if parse_block_path(item.path) is not None}
    blocks = {block.path for block in store.live().blocks}
    return Stray(tuple(sorted(objects - blocks)), tuple(sorted(blocks - objects)))


# The reader that proves it: snapshot after snapshot, all rows, compared with all that was registered at that instant.
#
# Counts and fingerprints are per tenant. A fingerprint is the sum of a hash of each row, so a row that is missing,
# there twice, or changed makes it another one, in whatever order and blocks the rows lie.

PAUSE_SECONDS: Final = 0.3
REMEMBERED: Final = 3


@dataclass(frozen=True, slots=True)
class ProvedContent:
    """All rows of one instant. `version`: the last change of the index that it includes; `opened`: blocks by tenant."""

    version: int
    content: Mapping[str, RowFingerprint]
    opened: Mapping[str, int]
    unreadable: frozenset[str]
    expected: LedgerEntries
    seconds: float

    @property
    def equal(self) -> bool:
        """Exactly what was registered at that instant, and nothing unreadable but what was lost on purpose."""
        there = {tenant: content for tenant, content in self.content.items() if content != NOTHING}
        return there == dict(self.expected.content) and self.unreadable == self.expected.lost

    @property
    def rows(self) -> int:
        return sum(content.rows for content in self.content.values())

    @property
    def blocks(self) -> int:
        return sum(self.opened.values())

    def difference(self) -> str:
        """What is not as it should be, for a person."""
        parts = [
            f"{tenant}: {self.content.get(tenant, NOTHING)}, registered {wanted}"
            for tenant, wanted in self.expected.content.items()
            if self.content.get(tenant, NOTHING) != wanted
        ]
        parts += [f"{tenant}: nothing was registered" for tenant in self.content.keys() - self.expected.content.keys()]
        parts += [f"block {block} cannot be read" for block in sorted(self.unreadable - self.expected.lost)]
        return f"at change {self.version}: " + "; ".join(parts)


@dataclass
class BlockProver:
    """Reads and compares until `stopped`. `versions`: the states of the index that were seen; `last`: the
    newest reading.
    """

    reader: BlockReader
    ledger: Ledger
    stopped: threading.Event = field(default_factory=threading.Event)
    proven: int = 0
    expired: int = 0
    rows: int = 0
    versions: set[int] = field(default_factory=set)
    different: list[str] = field(default_factory=list)
    last: ProvedContent | None = None
    error: CompactionError | None = None

    def run(self) -> None:
        """One instant after the other."""
        try:
            while not self.stopped.is_set():
                reading = self.prove()
                # A quarter of the time at most: it is the workers' machine too.
                self.stopped.wait(max(PAUSE_SECONDS, 3 * reading.seconds if reading is not None else 0.0))
        except CompactionError as error:
            self.error = error

    def prove(self) -> ProvedContent | None:
        """One instant; None when the snapshot was no longer readable at the end, which readers get as an error.

        Raises CompactionError: it could not be read at all.
        """
        snapshot, expected = self.ledger.instant(self.reader.snapshot)
        try:
            reading = read(snapshot, expected)
        except SnapshotExpiredError:
            self.expired += 1
            return None
        self.proven += reading.equal
        self.rows += reading.rows
        self.versions.add(reading.version)
        if not reading.equal and len(self.different) < REMEMBERED:
            self.different.append(reading.difference())
        self.last = reading
        return reading


def read(snapshot: BlockSnapshot, expected: LedgerEntries) -> ProvedContent:
    """Every row of every block of the snapshot. Raises SnapshotExpiredError, and errors of the store."""
    started = time.monotonic()
    content: dict[str, RowFingerprint] = {}
    opened: dict[str, int] = {}
    unreadable = set()
    for block in snapshot.blocks():
        opened[block.tenant] = opened.get(block.tenant, 0) + 1
        try:
            content[block.tenant] = content.get(block.tenant, NOTHING) + _content(snapshot, block)
        except CorruptBlockError:
            unreadable.add(block.id)
    return ProvedContent(snapshot.version, content, opened, frozenset(unreadable), expected, time.monotonic() - started)


def _content(snapshot: BlockSnapshot, block: Block) -> RowFingerprint:
    """Counted from the rows, whatever the index or the block say of them."""
    counted = Fingerprinter()
    for batch in snapshot.read(block):
        counted.update(batch)
    return counted.value


# The verdict: for every claim of the demo one check, from what writers and the reader counted, from the index and the
# objects, and from what the API server says.

FEWER: Final = 5
"""So many times fewer blocks than were registered are few: fan-in of one level is not enough for it."""


@dataclass(frozen=True, slots=True)
class BlockStory:
    """Everything that was seen, of which `checks` judges.

    `moments`: when blocks were registered (epoch seconds). `final`: the reader's last reading; `before`, `after`: the
    store when the policy was applied, and now. `lost`: id of the damaged block; `orphan`: path of what a writer
    uploaded and never registered, `found`: paths of all orphans that were collected. `leaks`: where a password was
    found. `amplification`: blocks that a query opened on average, at most, as the policy's status said.
    """

    seen: DemoObservation
    entries: LedgerEntries
    prover: BlockProver
    final: ProvedContent | None
    before: StoreFacts
    after: StoreFacts
    stray: Stray
    moments: Sequence[float]
    accident: Accident
    lost: str
    orphan: str
    found: Sequence[str]
    leaks: Sequence[str]
    amplification: float
    replicas_alive: int

    @property
    def receipts(self) -> Mapping[str, JobReceipt]:
        """By job."""
        return {job.metadata.name: job.status.receipt for job in self.seen.jobs if job.status.receipt is not None}

    @property
    def commits(self) -> list[datetime]:
        return sorted(receipt.committed_at for receipt in self.receipts.values() if receipt.committed_at is not None)


def checks(story: BlockStory) -> list[Check]:
    """Everything the demo claims."""
    return [
        *(_same_content(story, tenant) for tenant in story.entries.content),
        _at_every_moment(story.prover),
        _written_meanwhile(story),
        _receipts_agree(story),
        _every_job_ended(story.seen),
        _few_blocks(story),
        _no_debt(story),
        _damage_is_named(story),
        _accident_did_no_harm(story),
        _nothing_waits(story),
        _orphans(story),
        Check("no password is in any object or log", not story.leaks, ", ".join(story.leaks) or "none found"),
        Check(
            "one replica led while the other stood by",
            story.replicas_alive == 2 and story.seen.leader is not None,
            f"led by {story.seen.leader}",
        ),
    ]


def _same_content(story: BlockStory, tenant: str) -> Check:
    wanted = story.entries.content[tenant]
    read = None if story.final is None else story.final.content.get(tenant)
    fact = f"{wanted.rows} rows, {wanted.digest:016x}"[: len(f"{wanted.rows} rows, ") + 12]
    if read != wanted:
        fact += f", read were {read}"
    return Check(f"{tenant}: the rows read are those that were registered", read == wanted, fact)


def _at_every_moment(prover: BlockProver) -> Check:
    holds = len(prover.versions) > 1 <= prover.proven and not prover.different and prover.error is None
    again = f", {prover.expired} took longer than the grace" if prover.expired else ""
    fact = f"{prover.proven} instants, {len(prover.versions)} states of the index, {prover.rows} rows{again}"
    if not holds:
        fact = "; ".join([str(prover.error)] if prover.error is not None else prover.different) or fact
    return Check("a reader saw exactly these rows at every instant, once each", holds, fact)


def _written_meanwhile(story: BlockStory) -> Check:
    """In all of the pauses between commits together: a store that stands still would prove nothing."""
    commits = [moment.timestamp() for moment in story.commits]
    between = sum(commits[0] <= moment <= commits[-1] for moment in story.moments) if commits else 0
    pauses = sum(any(first <= moment < last for moment in story.moments) for first, last in pairwise(commits))
    return Check(
        "writers kept writing while blocks were merged",
        between > 0 and pauses > 1,
        f"{between} blocks registered between the first and the last of {len(commits)} commits",
    )


def read_amplification_of(seen: DemoObservation) -> float:
    """Blocks that a query opens on average, as the policy's status says it; 0 before it does."""
    debt = seen.policy.status.debt if seen.policy is not None else None
    return debt.measure(READS) if debt is not None else 0.0


def _receipts_agree(story: BlockStory) -> Check:
    equal = [
        receipt for receipt in story.receipts.values() if BLOCKS.proves_equal(receipt) and receipt.fingerprint_before
    ]
    return Check(
        "every receipt shows equal fingerprints of its sources and outputs",
        bool(equal) and len(equal) == len(story.receipts),
        f"{len(equal)} of {len(story.receipts)} receipts",
    )


def _every_job_ended(seen: DemoObservation) -> Check:
    others = [
        f"{job.metadata.name} is {job.status.state.value}"
        for job in seen.jobs
        if job.status.state is not JobState.SUCCEEDED
    ]
    return Check("every job succeeded", bool(seen.jobs) and not others, "; ".join(others) or f"{len(seen.jobs)} jobs")


def _few_blocks(story: BlockStory) -> Check:
    count, left = story.entries.count, len(story.after.live)
    now = read_amplification_of(story.seen)
    return Check(
        "small blocks became few large ones",
        left * FEWER <= count and 0 < now * FEWER <= story.amplification,
        f"{count} -> {left}; a query opens {now:.1f} on average, {story.amplification:.1f} before",
    )


def _no_debt(story: BlockStory) -> Check:
    policy = story.seen.policy
    debt = policy.status.debt if policy is not None else None
    holds = debt is not None and debt.sources == debt.bytes == 0 and story.after.mergeable == 0
    return Check("no debt is left", holds, "unknown" if debt is None else f"{debt.sources} blocks, {debt.bytes} bytes")


def _damage_is_named(story: BlockStory) -> Check:
    policy = story.seen.policy
    named = policy.status.quarantined if policy is not None else ()
    holds = [item.source for item in named] == [story.lost] and story.after.aside == {story.lost}
    sources = {source for receipt in story.receipts.values() for source in receipt.sources}
    holds = holds and story.lost not in sources
    fact = "; ".join(f"{item.source}: {item.reason}" for item in named) or "not named"
    return Check("the damaged block, and only it, is quarantined and named", holds, fact)


def _accident_did_no_harm(story: BlockStory) -> Check:
    done = story.accident.survived(story.seen)
    return Check(
        "the jobs of a killed worker were done by the next, with larger tokens",
        bool(done) and len(done) == len(story.accident.jobs),
        f"{story.accident.worker or 'no worker'} was killed; {len(done)} of {len(story.accident.jobs)} jobs done since",
    )


def _nothing_waits(story: BlockStory) -> Check:
    replaced = sum(len(receipt.sources) for receipt in story.receipts.values())
    return Check(
        "replaced blocks were deleted after their grace",
        story.after.tombstones == 0 and replaced > 0,
        f"{replaced} replaced, {story.after.tombstones} left",
    )


def _orphans(story: BlockStory) -> Check:
    fact = f"{len(story.found)} found and deleted; then {len(story.stray.objects)} more objects than blocks"
    if story.stray.blocks:
        fact += f", {len(story.stray.blocks)} blocks without an object: {story.stray.blocks[0]}"
    return Check(
        "what a dead writer never registered was collected, and the objects are the live blocks",
        story.orphan in story.found and story.stray.none,
        fact,
    )
