"""The demo of segment logs from beginning to end, and its screens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from compaction.api.job.job import CompactionJob, JobReceipt
from compaction.api.text.printing import format_bytes
from compaction.local.errors import DemoError
from demos import scenes
from demos.cluster import Accident, DemoCluster, DemoObservation, Replicas
from demos.proving import beside
from demos.scenes import MISSING, table_of
from demos.segments import owners
from demos.segments.owners import LEADER, NAMES, POLICY, Archive, Owners, load_of, loading
from demos.segments.proof import (
    KeyReader,
    LogStory,
    Loss,
    MeasuredLog,
    OwnerLosses,
    checks,
    commits_of,
    disk_bytes,
    measure,
    waiting,
)
from demos.stage import DemoStage
from replicated_kv.client import Client
from replicated_kv.errors import KeyValueError
from replicated_kv.messages import Status
from replicated_kv.workload import Comparison, Workload

# The screen of the logs while they are written and compacted, and the last screens.

JOB_COLUMNS: Final = ("LOG", "SIZE", "RECLAIMED")


@dataclass(frozen=True, slots=True)
class LogScene:
    """See `Scene`: of logs and their owners."""

    seen: DemoObservation
    statuses: Mapping[str, Status]
    owners: Owners
    reader: KeyReader
    changes: int
    job_columns: Sequence[str] = JOB_COLUMNS

    def job_cells(self, job: CompactionJob) -> tuple[str, ...]:
        """See `Scene`."""
        receipt = job.status.receipt
        return (
            job.spec.target.rpartition("/")[2] or MISSING,
            format_bytes(job.spec.estimated_bytes),
            MISSING if receipt is None else format_bytes(receipt.bytes_reclaimed),
        )

    def reader_line(self) -> str:
        """See `Scene`."""
        return self.reader.line()

    def store_line(self) -> str:
        """See `Scene`."""
        shown = ", ".join(
            f"{status.name} {status.entries} entries in {status.segments}" for status in self.statuses.values()
        )
        return f"{self.changes} changes acknowledged; needed entries and segments: {shown}"

    def store_table(self) -> Table:
        """See `Scene`."""
        table = table_of(("MEMBER", "LAST", "APPLIED", "SNAPSHOT", "KEYS", "ENTRIES", "SEGMENTS", "DISK", "INSTALLED"))
        for name in NAMES:
            one = self.statuses.get(name)
            if one is None:
                table.add_row(name, Text("does not run", style="red"))
                continue
            numbers = (one.last, one.applied, one.snapshot, one.keys, one.entries, one.segments)
            disk = format_bytes(disk_bytes(self.owners.log_of(name)))
            table.add_row(name, *map(str, numbers), disk, str(one.installed))
        return table


def receipts_table(story: LogStory) -> Table:
    """By log: what its jobs read, what they wrote, and that both hold the same entries."""
    table = table_of(("LOG", "RECEIPTS", "GROUPS", "SOURCES", "ENTRIES", "BEFORE", "AFTER", "SHA-256 BEFORE = AFTER"))
    for facts in _logs(story):
        mine = list(story.receipts(facts.path).values())
        rewrites = [item for item in mine if item.groups_committed]
        equal = sum(rewrite.fingerprint_before == rewrite.fingerprint_after != "" for rewrite in rewrites)
        table.add_row(
            facts.path.name,
            str(len(mine)),
            f"{_sum(mine, 'groups_committed')} of {_sum(mine, 'groups')}",
            str(sum(len(item.sources) for item in mine)),
            str(_sum(mine, "records")),
            format_bytes(_sum(mine, "bytes_before")),
            format_bytes(_sum(mine, "bytes_after")),
            Text(f"{equal} of {len(rewrites)} equal", style="green" if equal == len(rewrites) else "bold red"),
        )
    return table


def proof_table(story: LogStory) -> Table:
    """By log: what can be read of it at the end, and what it costs."""
    table = table_of(("LOG", "CONTENT", "IN SEGMENTS", "SEGMENTS", "DISK", "RECLAIMED"))
    for facts in _logs(story):
        comparison = next((item for item, other in story.members.values() if other is facts), None)
        same = not comparison.different if comparison is not None else facts.fingerprint == story.before.fingerprint
        table.add_row(
            facts.path.name,
            Text("equal", style="green") if same else Text("DIFFERENT", style="bold red"),
            str(facts.entries),
            str(facts.segments),
            format_bytes(facts.disk_bytes),
            format_bytes(_sum(list(story.receipts(facts.path).values()), "bytes_reclaimed")),
        )
    return table


def _logs(story: LogStory) -> list[MeasuredLog]:
    return [*(facts for _, facts in story.members.values()), story.after]


def _sum(receipts: Sequence[JobReceipt], name: str) -> int:
    return sum(getattr(receipt, name) for receipt in receipts)


# The demo of segment logs from beginning to end.
#
# In the stage's directory: `data/` the logs, `servers/` what the members of the key-value store say, `policy.yaml`
# what is applied, `control-plane/`, `operator/`.

QUARANTINED: Final = r'{range .status.quarantined[*]}{.reason}: {.message}{"\n"}{end}'

ANSWER: Final = r'run-now: {.status.runNow.outcome}, {.status.runNow.reason}: {.status.runNow.message}{"\n"}'


def show(stage: DemoStage) -> bool:
    """Show it all; True when every claim held. For `Stage.perform`."""
    owners = Owners(stage.servers, stage.data, detached=stage.keep)
    with ThreadPoolExecutor(max_workers=1) as pool:
        stage.step(f"three members of a replicated key-value store write logs below {stage.data}; {LEADER} leads")
        owners.start(*NAMES)
        stage.step("writing another log, of 128 MiB and damaged, while the control plane starts")
        archive = pool.submit(_create_and_measure, stage.data)
        cluster = stage.start_cluster(policy=POLICY)
        return _Play(stage, cluster, owners, *archive.result()).perform()


def _create_and_measure(root: Path) -> tuple[Archive, MeasuredLog]:
    archive = owners.create_archive(root)
    return archive, measure(archive.path)


@dataclass
class _Play:
    """What happens once everything stands. `epoch`: what has to be added to monotonic seconds."""

    stage: DemoStage
    cluster: DemoCluster
    owners: Owners
    archive: Archive
    before: MeasuredLog
    accident: Accident = field(init=False)
    workload: Workload = field(init=False)
    losses: OwnerLosses = field(init=False)
    reader: KeyReader = field(init=False)
    statuses: Mapping[str, Status] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accident = Accident(self.cluster, self.stage.operator)
        self.workload = load_of(self.owners)
        self.losses = OwnerLosses(self.owners, self.workload)
        self.reader = KeyReader(self.workload)

    def perform(self) -> bool:
        stage, before = self.stage, self.before
        stage.step(f"{before.path.name}: {before.entries} readable live entries, sha256 {before.fingerprint[:12]}")
        stage.step(
            f"damaged on purpose: {before.path.name}/{self.archive.damage.file}, index {self.archive.damage.index}"
        )
        replicas = stage.start_operator(self.cluster)
        stage.apply_policy(self.cluster, owners.policy(stage.data))
        with scenes.watching(stage.console) as shown, Client(self.owners.members) as client:
            with beside(self.reader), loading(self.workload):
                shown.say("keys are overwritten and deleted, and a reader reads them, from here on")
                self._watch(replicas, shown, client, lambda seen: self._seen_enough(seen, shown))
            shown.say(
                f"the load ended after {self.workload.written} changes; what is left is compacted now, by request:"
            )
            shown.say(f"kubectl compaction run-now {POLICY} -> {self.cluster.plugin('run-now', POLICY).strip()}")
            seen = self._watch(replicas, shown, client, self._settled)
            members = {name: (self._compare(client, name), measure(self.owners.log_of(name))) for name in NAMES}
        stage.command(self.cluster, "get", "cpol,cjob,lease")
        epoch = time.time() - time.monotonic()
        story = LogStory(
            seen=seen,
            archive=self.archive,
            before=before,
            after=measure(self.archive.path),
            members=members,
            moments=[moment + epoch for moment in self.workload.moments],
            changes=self.workload.written,
            reader=self.reader,
            losses=self.losses,
            accident=self.accident,
            replicas_alive=len(replicas.alive),
        )
        stage.command(self.cluster, "get", "cpol", POLICY, "-o", f"jsonpath={QUARANTINED}")
        stage.command(self.cluster, "get", "cpol", POLICY, "-o", f"jsonpath={ANSWER}")
        return stage.conclude(self.cluster, checks(story), receipts_table(story), proof_table(story))

    def _compare(self, client: Client, name: str) -> Comparison:
        """Every key of a member with what was acknowledged. DemoError: the member does not answer."""
        try:
            return self.workload.compare(client, name)
        except (OSError, KeyValueError) as error:
            raise DemoError(f"the keys of member {name} cannot be read back: {error}") from error

    def _watch(
        self, replicas: Replicas, shown: scenes.SceneView, client: Client, done: Callable[[DemoObservation], bool]
    ) -> DemoObservation:
        def show(seen: DemoObservation) -> None:
            self.owners.check()
            self.statuses = self.owners.statuses(client)
            shown.show(LogScene(seen, self.statuses, self.owners, self.reader, self.workload.written))

        return self.stage.watch(self.cluster, replicas, show, done=done)

    def _seen_enough(self, seen: DemoObservation, shown: scenes.SceneView) -> bool:
        """All accidents are over, and the log of each member was compacted since."""
        if line := self.losses.happen(seen, self.statuses):
            shown.say(line)
        if self.losses.stage is Loss.OVER and self.accident.happen(seen):
            shown.say(self.accident.story())
        return self.accident.replaced(seen) and all(self._compacted(seen, log) for log in self.owners.logs)

    def _compacted(self, seen: DemoObservation, log: Path) -> bool:
        """A log was compacted twice, the second time after the leader came back."""
        killed = self.losses.killed_at
        commits = commits_of(log, seen.jobs)
        return killed is not None and len(commits) > 1 and commits[-1] > killed

    def _settled(self, seen: DemoObservation) -> bool:
        """Nothing is left to do, and the old names are gone."""
        return seen.settled and not any(waiting(log) for log in (self.archive.path, *self.owners.logs))
