"""The demo of staging areas from beginning to end, its users and its screens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np
from rich.table import Table
from rich.text import Text

from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob
from compaction.api.text.printing import format_bytes
from compaction.local.errors import DemoError
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.committing import CommitDraft, Committer
from compaction.staging.format.columns import RecordColumns
from compaction.staging.kind import MOST_TOMBSTONES, STAGING
from compaction.staging.store import StagingConnection, StagingStore
from compaction.staging.tree.applying import apply
from demos import scenes
from demos.cluster import Accident, DemoCluster, DemoObservation, Replicas, Succession, damage, leftover_workers
from demos.proving import beside, raise_errors
from demos.scenes import MISSING, find_leaks, table_of
from demos.stage import DemoStage, Servers, start_servers
from demos.staging import writers
from demos.staging.proof import (
    BranchFacts,
    BranchListing,
    LeftOver,
    StagingProver,
    StagingStory,
    branch_of,
    checks,
    due,
    left_over,
    list_logs,
    look,
)
from demos.staging.writers import (
    BRANCHES,
    CLEANUP,
    COMMITTED,
    COMMITTER,
    DAMAGED,
    EXPERIMENT,
    GRACE,
    LOGS,
    POLICY,
    PURGED,
    REPOSITORY,
    TABLES,
    TOTAL,
    WRITE_SECONDS,
    BranchModel,
    BranchWriter,
    encode_entries,
    key_of,
)

# The screen of a staging area while it runs: its policy and newest jobs, the branches, the reader.

JOB_COLUMNS: Final = ("BRANCH", "TOKENS", "SIZE")


@dataclass(frozen=True, slots=True)
class StagingScene:
    """See `Scene`: of a staging area."""

    seen: DemoObservation
    facts: Mapping[str, BranchFacts]
    writers: Mapping[str, BranchWriter]
    prover: StagingProver
    job_columns: Sequence[str] = JOB_COLUMNS

    def job_cells(self, job: CompactionJob) -> tuple[str, ...]:
        """See `Scene`."""
        sources = job.spec.sources.metarange
        tokens = MISSING if sources is None else str(len(sources.tokens))
        return (branch_of(job), tokens, format_bytes(job.spec.estimated_bytes))

    def reader_line(self) -> str:
        """See `Scene`."""
        prover = self.prover
        wrong = f", {len(prover.different)} DIFFERENT" if prover.different else ""
        refused = f", {prover.refused} refused" if prover.refused else ""
        return f"reader: {prover.proven} readings equal{wrong}{refused}, {prover.records} records"

    def store_line(self) -> str:
        """See `Scene`."""
        return "; ".join(f"{name} {_staged(facts)}" for name, facts in self.facts.items())

    def store_table(self) -> Table:
        """See `Scene`."""
        table = table_of(("BRANCH", "CHANGES", "COMMITS", "STAGED", "TOMBSTONES", "SEALED", "COMPACTED BASE"))
        for name, facts in self.facts.items():
            writer = self.writers[name]
            staged, tombstones = str(facts.counts.writes), str(facts.counts.tombstones)
            changes, commits = str(writer.model.acknowledged), str(writer.commits)
            table.add_row(name, changes, commits, staged, tombstones, str(facts.sealed), facts.base[:12] or MISSING)
        return table


def _staged(facts: BranchFacts) -> str:
    counts = facts.counts
    return f"{counts.writes} writes ({counts.tombstones} tombstones) in {facts.sealed + 1} tokens"


def receipts_table(story: StagingStory) -> Table:
    """By branch: tokens that became part of its base, ranges that were written, and that both hold the same."""
    table = table_of(("BRANCH", "RECEIPTS", "TOKENS", "RANGES", "RECORDS", "FINGERPRINTS BEFORE = AFTER"))
    for name in story.writers:
        mine = story.receipts_of(name)
        equal = sum(STAGING.proves_equal(item) for item in mine)
        table.add_row(
            name,
            str(len(mine)),
            str(sum(len(item.sources) for item in mine)),
            str(sum(len(item.outputs) for item in mine)),
            str(sum(item.records for item in mine)),
            Text(f"{equal} of {len(mine)} equal", style="green" if equal == len(mine) else "bold red"),
        )
    return table


def proof_table(story: StagingStory) -> Table:
    """By branch: what it shows by its writer and by the reader, and what a read of it asks."""
    table = table_of(("BRANCH", "RECORDS", "CONTENT", "CHANGES", "COMMITS", "TOMBSTONES", "SEALED TOKENS"))
    for name, writer in story.writers.items():
        before, after, read = story.before[name], story.after[name], story.final.get(name, ())
        equal = bool(read) and not any(item.different for item in read)
        table.add_row(
            name,
            str(writer.model.records),
            Text("equal", style="green") if equal else Text("DIFFERENT", style="bold red"),
            str(writer.model.acknowledged),
            str(writer.commits),
            f"{before.counts.tombstones} -> {after.counts.tombstones}",
            f"{before.sealed} -> {after.sealed}",
        )
    return table


# Those who use the staging area: its repository and branches, a writer for each branch, and the reader.

SEED = 15
FIRST_VERSION = 1
BATCH = 50_000


@dataclass
class StagingCast:
    """`damaged`: id of the range that loses bytes, `before`: its bytes as they were."""

    area: Area
    writers: Mapping[str, BranchWriter]
    prover: StagingProver
    damaged: str = ""
    before: bytes = field(default=b"", repr=False)

    @classmethod
    def create(cls, store: StagingStore, namespace: str) -> StagingCast:
        """The repository with its branches on a commit of all records. Raises CompactionError."""
        area = store.create(REPOSITORY, namespace, committer=COMMITTER, default_branch=COMMITTED.name)
        tree = apply(area.ranges, "", _base()).metarange_id
        Committer(area).commit(COMMITTED.name, CommitDraft(COMMITTER, "the base"), tree=tree)
        writers = {}
        for number, branch in enumerate(BRANCHES):
            if branch is not COMMITTED:
                Brancher(area).create(branch.name, COMMITTED.name)
            model = BranchModel(branch.name, np.full(TOTAL, FIRST_VERSION, np.uint32))
            writers[branch.name] = BranchWriter(area, branch, model, seed=SEED + number)
        return cls(area, writers, StagingProver(area, {name: item.model for name, item in writers.items()}))

    def begin(self, *, purged: int = PURGED) -> None:
        """The backlog: deletions below `logs/` on the branch that purges, a few changes on the others, and a range of
        its own for the branch that will have a damaged one. Raises CompactionError.
        """
        for writer in self.writers.values():
            if writer.branch.purges:
                writer.purge(purged)
            else:
                writer.write_sets(5)
        Committer(self.area).commit(DAMAGED.name, CommitDraft(COMMITTER, "ranges of its own"))
        self.damage()

    def damage(self) -> None:
        """Bytes of a range of one branch are inverted: of one that no other branch has, below `tables/`."""
        area = self.area
        head = area.references.commit(DAMAGED.name).meta_range_id
        base = area.references.commit(f"{DAMAGED.name}~1").meta_range_id
        shared = {item.id for item in area.ranges.ranges(base)}
        own = [item.id for item in area.ranges.ranges(head, key_of(LOGS)) if item.id not in shared]
        if not own:
            raise DemoError(f"branch {DAMAGED.name} has no range of its own")
        self.damaged = own[-1]
        self.prover.damaged = (DAMAGED.name, self.damaged)
        self.before = damage(area.ranges.objects, area.ranges.path(self.damaged))

    def restore(self) -> None:
        """The range is as it was."""
        self.area.ranges.objects.put(self.area.ranges.path(self.damaged), self.before)
        self.area.ranges.forget(self.damaged)
        self.prover.damaged = None

    def check(self) -> None:
        """Raises what ended one of them too early."""
        raise_errors(*self.writers.values(), self.prover)

    @property
    def moments(self) -> list[float]:
        """When changes were acknowledged, epoch seconds."""
        return sorted(moment for writer in self.writers.values() for moment in writer.moments)


def _base() -> Iterator[RecordColumns]:
    for first in range(0, LOGS + TABLES, BATCH):
        numbers = np.arange(first, min(first + BATCH, TOTAL))
        yield encode_entries(numbers, np.full(len(numbers), FIRST_VERSION, np.uint32))


# The demo of staging areas from beginning to end.
#
# In the stage's directory: `servers/` versitygw and PostgreSQL, `policy.yaml` what is applied, `control-plane/`,
# `operator/`. The Secrets are nowhere but in the API server, and where the operator gives them to its workers.

STAGING_STATUS: Final = r"{.status.debt.measures}{'\n'}{range .status.debt.behind[*]}{.target} {.measures}{'\n'}{end}"


def show(stage: DemoStage) -> bool:
    """Show it all; True when every claim held. For `Stage.perform`."""
    servers = start_servers(stage.servers, detached=stage.keep, report=stage.step)
    connection = StagingConnection(servers.database_url, options=servers.objects.options())
    with closing(StagingStore.open(connection)) as store, ThreadPoolExecutor(max_workers=1) as pool:
        stage.step(f"{PURGED} keys of branch {CLEANUP.name} are deleted, while the control plane starts")
        begun = pool.submit(_begin, store, servers.url(REPOSITORY))
        cluster = stage.start_cluster(policy=POLICY)
        return _Play(stage, servers, cluster, begun.result()).perform()


def _begin(store: StagingStore, namespace: str) -> StagingCast:
    cast = StagingCast.create(store, namespace)
    cast.begin()
    return cast


@dataclass
class _Play:
    """What happens once everything stands. `named`: what the status of a job said of the damaged range; `reasons`: what
    `why` said when the million tombstones were there.
    """

    stage: DemoStage
    servers: Servers
    cluster: DemoCluster
    cast: StagingCast
    accident: Accident = field(init=False)
    succession: Succession = field(init=False)
    named: str = ""
    restored: datetime | None = None
    measured: float = 0.0
    reasons: str = ""

    def __post_init__(self) -> None:
        self.accident = Accident(self.cluster, self.stage.operator, after_jobs=1)

    def perform(self) -> bool:
        stage, cast = self.stage, self.cast
        before, listed = look(cast.area), list_logs(cast.area, CLEANUP.name)
        milliseconds = f"{listed.seconds * 1000:.0f} ms"
        stage.step(f"listing logs/ of {CLEANUP.name} steps over {listed.stepped_over} tombstones: {milliseconds}")
        stage.step(f"damaged on purpose: range {cast.damaged} of branch {DAMAGED.name}")
        secrets = writers.secrets(self.servers.objects.options(), self.servers.database_url)
        stage.apply_secrets(self.cluster, secrets)
        replicas = stage.start_operator(self.cluster)
        self.succession = Succession(replicas)
        stage.apply_policy(self.cluster, writers.policy())
        with scenes.watching(stage.console) as shown, beside(cast.prover):
            shown.say(f"writers of {len(cast.writers)} branches write, and a reader reads, from here to the end")
            with beside(*cast.writers.values()):
                self._watch(replicas, shown, lambda seen, _: any(job.status.worker for job in seen.jobs))
                first = time.monotonic()
                self._watch(replicas, shown, lambda seen, _: self._seen_enough(seen, shown, first))
            cast.writers[COMMITTED.name].commit()
            shown.say(f"writers ended; what is due is compacted, and what was replaced is deleted after {GRACE}")
            seen = self._watch(replicas, shown, self._settled)
        return self._judge(seen, before, listed, replicas)

    def _watch(
        self,
        replicas: Replicas,
        shown: scenes.SceneView,
        done: Callable[[DemoObservation, Mapping[str, BranchFacts]], bool],
    ) -> DemoObservation:
        facts = look(self.cast.area)

        def show(seen: DemoObservation) -> None:
            nonlocal facts
            self.cast.check()
            facts = look(self.cast.area)
            self._measure(seen)
            shown.show(StagingScene(seen, facts, self.cast.writers, self.cast.prover))

        return self.stage.watch(self.cluster, replicas, show, done=lambda seen: done(seen, facts))

    def _measure(self, seen: DemoObservation) -> None:
        debt = seen.policy.status.debt if seen.policy is not None else None
        measured = debt.measure(MOST_TOMBSTONES) if debt is not None else 0.0
        if measured >= PURGED and not self.reasons:
            self.reasons = self.cluster.plugin("why", POLICY)
        self.measured = max(self.measured, measured)

    def _seen_enough(self, seen: DemoObservation, shown: scenes.SceneView, began: float) -> bool:
        """Writers wrote for long enough, and all that goes wrong has been overcome."""
        if self.accident.happen(seen):
            shown.say(self.accident.story())
        self._restore(seen, shown)
        if self.accident.replaced(seen) and self.succession.happen(seen):
            shown.say(f"killed (SIGKILL): {self.succession.killed}, the coordinator")
        compacted = {branch_of(job) for job in seen.jobs if job.status.state is JobState.SUCCEEDED}
        return (
            bool(self.accident.survived(seen))
            and bool(self.succession.done_since(seen))
            and {CLEANUP.name, EXPERIMENT.name, DAMAGED.name} <= compacted
            and time.monotonic() - began >= WRITE_SECONDS
        )

    def _restore(self, seen: DemoObservation, shown: scenes.SceneView) -> None:
        """The damaged range is replaced by what it was, once a job has named it and others have succeeded."""
        if self.restored is not None:
            return
        damage = self.cast.damaged
        said = (attempt.message for job in seen.jobs for attempt in job.status.attempts)
        self.named = next((message for message in said if damage in message), "")
        others = any(job.status.state is JobState.SUCCEEDED for job in seen.jobs)
        if self.named and others and self.cast.prover.refused:
            self.restored = datetime.now(UTC)
            self.cast.restore()
            shown.say(f"restored: range {damage}, which a job has named")

    def _settled(self, seen: DemoObservation, facts: Mapping[str, BranchFacts]) -> bool:
        """No job is left, no branch is due, and all that was replaced is deleted."""
        return seen.quiet and not any(due(fact) for fact in facts.values()) and self._left(seen).none

    def _left(self, seen: DemoObservation) -> LeftOver:
        receipts = (job.status.receipt for job in seen.jobs if job.status.receipt is not None)
        return left_over(self.cast.area, [token for receipt in receipts for token in receipt.sources])

    def _judge(
        self, seen: DemoObservation, before: Mapping[str, BranchFacts], listed: BranchListing, replicas: Replicas
    ) -> bool:
        stage, cast = self.stage, self.cast
        committed = cast.writers[COMMITTED.name].committed
        stage.print_answer(f"kubectl compaction why {POLICY}        # before", self.reasons)
        stage.command(self.cluster, "get", "cpol,cjob,lease")
        stage.command(self.cluster, "get", "cpol", POLICY, "-o", f"jsonpath={STAGING_STATUS}")
        stage.print_answer(f"kubectl compaction why {POLICY}", self.cluster.plugin("why", POLICY))
        processes = (*replicas.alive, *leftover_workers(stage.operator))
        story = StagingStory(
            seen=seen,
            writers=cast.writers,
            prover=cast.prover,
            final={name: cast.prover.prove(name) for name in cast.writers},
            committed=committed is not None and cast.prover.shows(f"{COMMITTED.name}@", committed),
            before=before,
            after=look(cast.area),
            listed=(listed, list_logs(cast.area, CLEANUP.name, times=3)),
            accident=self.accident,
            succession=self.succession,
            damaged=cast.damaged,
            named=self.named,
            restored=self.restored,
            measured=self.measured,
            left=self._left(seen),
            leaks=find_leaks(self.servers.secrets, self.cluster, stage.operator, processes),
        )
        return stage.conclude(self.cluster, checks(story), receipts_table(story), proof_table(story))
