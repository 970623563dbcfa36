"""The demo of block stores from beginning to end, and its screens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from rich.table import Table
from rich.text import Text

from compaction.api.job.job import CompactionJob, JobReceipt
from compaction.api.text.printing import format_bytes
from compaction.blocks.kind import BLOCKS
from compaction.blocks.reader import BlockReader
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep.orphan_collector import collect_orphans, find_orphans
from demos import scenes
from demos.blocks import writers
from demos.blocks.proof import (
    BlockProver,
    BlockStory,
    StoreFacts,
    checks,
    compare,
    look,
    read_amplification_of,
)
from demos.blocks.writers import (
    DAMAGED,
    DAMAGED_BLOCK,
    GRACE,
    POLICY,
    TENANTS,
    TOP_LEVEL,
    WRITE_SECONDS,
    BlockWriter,
    Ledger,
    LedgerEntries,
)
from demos.cluster import Accident, DemoCluster, DemoObservation, Replicas, damage, leftover_workers
from demos.proving import beside, raise_errors
from demos.scenes import MISSING, find_leaks, table_of
from demos.stage import DemoStage, Servers, start_servers

# The screen of a block store while it runs: its policy and newest jobs, blocks by tenant and level, the reader.

JOB_COLUMNS: Final = ("TENANT", "LEVEL", "BLOCKS", "SIZE")


@dataclass(frozen=True, slots=True)
class BlockScene:
    """See `Scene`: of a block store."""

    seen: DemoObservation
    facts: StoreFacts
    entries: LedgerEntries
    prover: BlockProver
    job_columns: Sequence[str] = JOB_COLUMNS

    def job_cells(self, job: CompactionJob) -> tuple[str, ...]:
        """See `Scene`."""
        sources = job.spec.sources.blocks
        return (
            MISSING if sources is None else sources.tenant,
            f"L{job.spec.level}",
            MISSING if sources is None else str(len(sources.blocks)),
            format_bytes(job.spec.estimated_bytes),
        )

    def reader_line(self) -> str:
        """See `Scene`."""
        return reader_line(self.prover)

    def store_line(self) -> str:
        """See `Scene`."""
        return store_line(self.facts, self.entries)

    def store_table(self) -> Table:
        """See `Scene`."""
        return store_table(self.facts, self.entries)


def reader_line(prover: BlockProver) -> str:
    """How it goes for the reader."""
    wrong = f", {len(prover.different)} DIFFERENT" if prover.different else ""
    last = f", the last one of {prover.last.rows} rows in {prover.last.blocks} blocks" if prover.last else ""
    return f"reader: {prover.proven} instants equal{wrong}{last}"


def store_line(facts: StoreFacts, entries: LedgerEntries) -> str:
    """The store in one line."""
    levels = Counter(block.level for block in facts.live)
    shown = " ".join(f"L{level} {levels[level]}" for level in range(TOP_LEVEL + 1))
    return f"{entries.count} blocks registered, {len(facts.live)} live ({shown}), {facts.tombstones} to delete"


def store_table(facts: StoreFacts, entries: LedgerEntries) -> Table:
    """By tenant: what was registered, and what a reader opens now."""
    levels = tuple(f"L{level}" for level in range(TOP_LEVEL + 1))
    table = table_of(("TENANT", "REGISTERED", "ROWS", *levels, "LIVE"))
    for tenant in sorted(entries.blocks):
        counts = facts.by_level.get(tenant, {})
        cells = [str(counts.get(level, 0)) for level in range(TOP_LEVEL + 1)]
        rows = str(entries.content[tenant].rows)
        table.add_row(tenant, str(entries.blocks[tenant]), rows, *cells, str(sum(counts.values())))
    return table


def receipts_table(jobs: Sequence[CompactionJob], receipts: Mapping[str, JobReceipt]) -> Table:
    """By level: what its jobs read, what they wrote, and that both hold the same rows."""
    table = table_of(("LEVEL", "RECEIPTS", "BLOCKS", "ROWS", "BEFORE", "AFTER", "FINGERPRINTS BEFORE = AFTER"))
    for level in sorted({job.spec.level for job in jobs}):
        mine = [
            receipts[job.metadata.name] for job in jobs if job.spec.level == level and job.metadata.name in receipts
        ]
        equal = sum(BLOCKS.proves_equal(item) for item in mine)
        table.add_row(
            f"L{level} -> L{level + 1}",
            str(len(mine)),
            f"{sum(len(item.sources) for item in mine)} -> {sum(len(item.outputs) for item in mine)}",
            str(sum(item.records for item in mine)),
            format_bytes(sum(item.bytes_before for item in mine)),
            format_bytes(sum(item.bytes_after for item in mine)),
            Text(f"{equal} of {len(mine)} equal", style="green" if equal == len(mine) else "bold red"),
        )
    return table


def proof_table(entries: LedgerEntries, before: StoreFacts, after: StoreFacts, prover: BlockProver) -> Table:
    """By tenant: rows as registered and as read, and how many blocks a query about it opens."""
    table = table_of(("TENANT", "ROWS", "CONTENT", "REGISTERED", "LIVE AT THE BEGINNING", "LIVE AT THE END"))
    for tenant, content in sorted(entries.content.items()):
        read = prover.last.content.get(tenant) if prover.last is not None else None
        table.add_row(
            tenant,
            str(content.rows),
            Text("equal", style="green") if read == content else Text("DIFFERENT", style="bold red"),
            str(entries.blocks[tenant]),
            str(before.of(tenant)),
            str(after.of(tenant)),
        )
    table.add_section()
    table.add_row("all", "", "", str(entries.count), str(len(before.live)), str(len(after.live)))
    return table


# The demo of block stores from beginning to end.
#
# In the stage's directory: `servers/` versitygw and PostgreSQL, `policy.yaml` what is applied, `control-plane/`,
# `operator/`. The Secrets are nowhere but in the API server, and where the operator gives them to its workers.

SEED: Final = 6
BLOCKS_STATUS: Final = (
    r"{.status.debt.measures}{'\n'}{range .status.quarantined[*]}{.source} {.reason}: {.message}{'\n'}{end}"
)


def show(stage: DemoStage) -> bool:
    """Show it all; True when every claim held. For `Stage.perform`."""
    servers = start_servers(stage.servers, detached=stage.keep, report=stage.step)
    url = servers.url("blocks")
    connection = BlockStoreConnection(url, servers.database_url, servers.objects.options())
    with closing(BlockStore.open(connection)) as store, ThreadPoolExecutor(max_workers=1) as pool:
        cast = Cast.of(store)
        stage.step("three tenants write and register blocks, one of them is noisy, while the control plane starts")
        backlog = pool.submit(cast.begin)
        cluster = stage.start_cluster(policy=POLICY)
        backlog.result()
        return _Play(stage, servers, store, cluster, cast).perform()


@dataclass
class Cast:
    """Those who use the store. `lost`: id of the block that is damaged; `orphan`: path of one never registered."""

    store: BlockStore
    ledger: Ledger
    writers: list[BlockWriter]
    prover: BlockProver
    lost: str = ""
    orphan: str = ""

    @classmethod
    def of(cls, store: BlockStore) -> Cast:
        ledger = Ledger()
        writers = [BlockWriter(store, ledger, tenant, seed=SEED + number) for number, tenant in enumerate(TENANTS)]
        return cls(store, ledger, writers, BlockProver(BlockReader(store), ledger))

    def begin(self) -> None:
        """The backlog, of which one block is damaged, and a writer that dies before it registers what it uploaded.

        Raises CompactionError.
        """
        for writer in self.writers:
            writer.write(writer.tenant.backlog)
            if writer.tenant is DAMAGED:
                victim = writer.written[DAMAGED_BLOCK]
                damage(self.store.objects, victim.path)
                self.ledger.lose(DAMAGED.name, victim.id, victim.content)
                self.lost = victim.id
        # S3 dates objects by the second; what is as old as the store itself is not taken for an orphan.
        time.sleep(1.0)
        self.orphan = self.writers[0].upload().path

    @property
    def moments(self) -> list[float]:
        """When blocks were registered, epoch seconds."""
        return sorted(block.at for writer in self.writers for block in writer.written)


@dataclass
class _Play:
    """What happens once everything stands."""

    stage: DemoStage
    servers: Servers
    store: BlockStore
    cluster: DemoCluster
    cast: Cast
    accident: Accident = field(init=False)
    amplification: float = 0.0

    def __post_init__(self) -> None:
        self.accident = Accident(self.cluster, self.stage.operator)

    def perform(self) -> bool:
        stage, cast = self.stage, self.cast
        before = look(self.store)
        entries = cast.ledger.entries()
        stage.step(f"backlog: {store_line(before, entries)}")
        stage.step(f"damaged on purpose: block {cast.lost} of {DAMAGED.name}")
        secrets = writers.secrets(self.servers.objects.options(), self.servers.database_url)
        stage.apply_secrets(self.cluster, secrets)
        replicas = stage.start_operator(self.cluster)
        stage.apply_policy(self.cluster, writers.policy(self.servers.url("blocks")))
        with scenes.watching(stage.console) as shown, beside(cast.prover):
            self._watch(replicas, shown, lambda seen, _: any(job.status.worker for job in seen.jobs))
            shown.say("a worker has its first jobs: writers go on writing, and a reader reads, from here to the end")
            began = time.monotonic()
            with beside(*cast.writers):
                self._watch(replicas, shown, lambda seen, _: self._seen_enough(seen, shown, began))
            shown.say(f"writers ended; what is left is merged, and deleted after {GRACE}")
            seen = self._watch(replicas, shown, _settled)
        return self._judge(seen, before, replicas)

    def _watch(
        self, replicas: Replicas, shown: scenes.SceneView, done: Callable[[DemoObservation, StoreFacts], bool]
    ) -> DemoObservation:
        facts = look(self.store)

        def show(seen: DemoObservation) -> None:
            nonlocal facts
            raise_errors(*self.cast.writers, self.cast.prover)
            facts = look(self.store)
            self.amplification = max(self.amplification, read_amplification_of(seen))
            shown.show(BlockScene(seen, facts, self.cast.ledger.entries(), self.cast.prover))

        return self.stage.watch(self.cluster, replicas, show, done=lambda seen: done(seen, facts))

    def _seen_enough(self, seen: DemoObservation, shown: scenes.SceneView, began: float) -> bool:
        """Writers wrote for long enough, and the worker after the killed one is at work."""
        if self.accident.happen(seen):
            shown.say(self.accident.story())
        return self.accident.replaced(seen) and time.monotonic() - began >= WRITE_SECONDS

    def _judge(self, seen: DemoObservation, before: StoreFacts, replicas: Replicas) -> bool:
        stage, cast, store = self.stage, self.cast, self.store
        found = [orphan.path for orphan in find_orphans(store.objects, store.index, older_than=0).orphans]
        collect_orphans(store.objects, store.index, now=store.now(), older_than=0)
        final = cast.prover.prove()
        stage.command(self.cluster, "get", "cpol,cjob,lease")
        stage.command(self.cluster, "get", "cpol", POLICY, "-o", f"jsonpath={BLOCKS_STATUS}")
        processes = (*replicas.alive, *leftover_workers(stage.operator))
        story = BlockStory(
            seen=seen,
            entries=cast.ledger.entries(),
            prover=cast.prover,
            final=final,
            before=before,
            after=look(store),
            stray=compare(store),
            moments=cast.moments,
            accident=self.accident,
            lost=cast.lost,
            orphan=cast.orphan,
            found=found,
            leaks=find_leaks(self.servers.secrets, self.cluster, stage.operator, processes),
            amplification=self.amplification,
            replicas_alive=len(replicas.alive),
        )
        receipts = receipts_table(seen.jobs, story.receipts)
        proof = proof_table(story.entries, before, story.after, cast.prover)
        return stage.conclude(self.cluster, checks(story), receipts, proof)


def _settled(seen: DemoObservation, facts: StoreFacts) -> bool:
    """Nothing is left to do, nothing will become due, and all that was replaced is deleted."""
    return seen.settled and facts.mergeable == 0 and facts.tombstones == 0
