"""The verdict on the demo of segment logs: losses on purpose, a reader of the live store, one check for each claim."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob, JobReceipt
from compaction.local.tenants import Check
from compaction.segments.commit import fence
from compaction.segments.errors import CorruptEntryError, LogChangedError
from compaction.segments.reading.reader import EntryFingerprint, read_batches
from compaction.segments.reading.view import open_log
from demos.cluster import Accident, DemoObservation
from demos.proving import last_reason, was_outdated
from demos.segments.owners import FOLLOWER, LEADER, Archive, Owners
from replicated_kv.client import Client
from replicated_kv.errors import KeyValueError
from replicated_kv.messages import Status
from replicated_kv.workload import Comparison, Workload

# The readable contents of a log and their cost on disk, measured from the files alone, before and after.

ATTEMPTS: Final = 20
LOOK_PAUSE_SECONDS: Final = 0.2
UNFINISHED: Final = frozenset({".link", ".compacting", ".partial"})


@dataclass(frozen=True, slots=True)
class MeasuredLog:
    """One log at one moment.

    `fingerprint` is that of all readable live entries; `unreadable` are the indexes of live entries that fail their
    checksum. `waiting` counts old names whose grace is not over. `disk_bytes` counts every file of the directory once,
    however many names it has.
    """

    path: Path
    fingerprint: str
    entries: int
    unreadable: tuple[int, ...]
    segments: int
    waiting: int
    disk_bytes: int


def measure(directory: Path) -> MeasuredLog:
    """Read the whole log, every payload checked against its CRC.

    Raises:
        LogChangedError: it was compacted under our hands at every one of several attempts.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return _measure(directory)
        except LogChangedError:
            time.sleep(LOOK_PAUSE_SECONDS)
    return _measure(directory)


def _measure(directory: Path) -> MeasuredLog:
    log = open_log(directory)
    corrupt: list[CorruptEntryError] = []
    content = EntryFingerprint()
    for batch in read_batches(log, live_only=True, on_corrupt=corrupt.append):
        content.update_batch(batch)
    return MeasuredLog(
        path=directory,
        fingerprint=content.hexdigest(),
        entries=content.entries,
        unreadable=tuple(error.index for error in corrupt),
        segments=len(log.segments),
        waiting=waiting(directory),
        disk_bytes=disk_bytes(directory),
    )


def disk_bytes(directory: Path) -> int:
    """Bytes of all segment files below `directory`, hard links counted once and symbolic links not at all."""
    sizes = {}
    for path in directory.glob("*.segment"):
        status = path.lstat()
        if not path.is_symlink():
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def waiting(directory: Path) -> int:
    """How many old names wait for the end of their grace, and files of unfinished attempts that were not removed."""
    names = {item.name for item in fence.read(directory).tombstones}
    names |= {path.name for path in directory.iterdir() if path.is_symlink() or path.suffix in UNFINISHED}
    return len(names)


# A reader of the live store: keys at random, each compared with what was acknowledged, from beginning to end.

READ_PAUSE_SECONDS: Final = 0.02
REMEMBERED: Final = 3


@dataclass
class KeyReader:
    """Reads until `stopped`; each value comes from the leader's log. For `beside`."""

    workload: Workload
    stopped: threading.Event = field(default_factory=threading.Event)
    read: int = 0
    wrong: list[str] = field(default_factory=list)
    error: KeyValueError | None = None

    def run(self) -> None:
        """One key after the other. Of the wrong ones the first few are kept."""
        random = np.random.default_rng(1)
        with Client(self.workload.members, timeout=self.workload.timeout) as client:
            try:
                while not self.stopped.wait(READ_PAUSE_SECONDS):
                    found = self.workload.check(client, int(random.integers(self.workload.keys)))
                    self.read += 1
                    if found and len(self.wrong) < REMEMBERED:
                        self.wrong.append(found)
            except KeyValueError as error:
                self.error = error

    def line(self) -> str:
        """How it goes, for a person."""
        return f"reader: {self.read} keys right" if not self.wrong else f"reader: WRONG: {self.wrong[0]}"


# The jobs of one log, from the API server.


def log_of(job: CompactionJob) -> Path | None:
    """The log that a job is about."""
    sources = job.spec.sources.segment_log
    return None if sources is None else Path(sources.path)


def receipts_of(path: Path, jobs: Sequence[CompactionJob]) -> dict[str, JobReceipt]:
    """The receipts of one log's jobs, by job name."""
    return {job.metadata.name: job.status.receipt for job in jobs if log_of(job) == path and job.status.receipt}


def commits_of(path: Path, jobs: Sequence[CompactionJob]) -> list[datetime]:
    """When jobs of one log were committed, in order."""
    receipts = receipts_of(path, jobs).values()
    return sorted(receipt.committed_at for receipt in receipts if receipt.committed_at is not None)


# Failures of the owners on purpose: the leader is killed and comes back; a follower is down until the others have
# dropped entries that it does not have, and is installed.

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


# The verdict: for every claim of the demo one check, made from what the store's client was promised, from files
# measured before and after, and from what the API server says.


@dataclass(frozen=True, slots=True)
class LogStory:
    """Everything that was seen, of which `checks` judges.

    `members`: each member's keys compared with what was acknowledged, and its log at the end. `moments`: when writes
    were acknowledged (epoch seconds); `changes`: how many keys were changed. `before`, `after`: the damaged log.
    """

    seen: DemoObservation
    archive: Archive
    before: MeasuredLog
    after: MeasuredLog
    members: Mapping[str, tuple[Comparison, MeasuredLog]]
    moments: Sequence[float]
    changes: int
    reader: KeyReader
    losses: OwnerLosses
    accident: Accident
    replicas_alive: int

    def receipts(self, path: Path) -> Mapping[str, JobReceipt]:
        """Of one log, by job."""
        return receipts_of(path, self.seen.jobs)

    @property
    def all_receipts(self) -> list[JobReceipt]:
        return [job.status.receipt for job in self.seen.jobs if job.status.receipt is not None]

    def commits(self, path: Path) -> list[datetime]:
        """When jobs of one log were committed, in order."""
        return commits_of(path, self.seen.jobs)


def checks(story: LogStory) -> list[Check]:
    """Everything the demo claims."""
    return [
        *(_every_key(name, comparison) for name, (comparison, _) in story.members.items()),
        *(_compacted_while_written(story, name) for name in story.members),
        _reader_saw_it(story.reader),
        _leader_came_back(story),
        _follower_was_installed(story.losses),
        _worker_was_replaced(story),
        _same_content(story),
        _reclaimed(story),
        _receipts_agree(story),
        _every_job_ended(story),
        _damage_is_named(story),
        _siblings_were_compacted(story),
        _nothing_waits(story),
        Check(
            "one replica led while the other stood by",
            story.replicas_alive == 2 and story.seen.leader is not None,
            f"led by {story.seen.leader}",
        ),
    ]


def _every_key(name: str, comparison: Comparison) -> Check:
    fact = f"{comparison.keys} keys"
    if comparison.different:
        fact += f", {len(comparison.different)} DIFFER: {', '.join(comparison.different[:3])}"
    claim = f"{name}: every key, read back from its log, holds what was acknowledged"
    return Check(claim, comparison.keys > 0 and not comparison.different, fact)


def _compacted_while_written(story: LogStory, name: str) -> Check:
    """Writes were acknowledged in the pauses between commits: a log that stands still would prove nothing."""
    facts = story.members[name][1]
    commits = [moment.timestamp() for moment in story.commits(facts.path)]
    pauses = sum(any(first <= moment < last for moment in story.moments) for first, last in pairwise(commits))
    reclaimed = sum(receipt.bytes_reclaimed for receipt in story.receipts(facts.path).values())
    holds = pauses > 0 and reclaimed > 0 and not facts.unreadable
    fact = f"{len(commits)} commits, {reclaimed} bytes reclaimed, {len(facts.unreadable)} entries unreadable"
    return Check(f"{name}: its log was compacted while it was written", holds, fact)


def _reader_saw_it(reader: KeyReader) -> Check:
    wrong = "; ".join([str(reader.error)] if reader.error is not None else reader.wrong)
    return Check(
        "a reader found what was acknowledged at every moment",
        reader.read > 0 and not wrong,
        wrong or f"{reader.read} keys",
    )


def _leader_came_back(story: LogStory) -> Check:
    killed = story.losses.killed_at
    moments = [] if killed is None else [moment for moment in story.moments if moment > killed.timestamp()]
    commits = (
        []
        if killed is None
        else [commit for commit in story.commits(story.losses.owners.log_of(LEADER)) if commit > killed]
    )
    return Check(
        f"the owner {LEADER} was killed, came back, and its log was compacted again",
        bool(moments) and bool(commits),
        f"{len(moments)} batches acknowledged, {len(commits)} commits since" if killed else "it was not killed",
    )


def _follower_was_installed(losses: OwnerLosses) -> Check:
    holds = losses.installed > 0 and losses.skipped > losses.behind > 0
    fact = f"from entry {losses.behind} to the snapshot of {losses.skipped} or later"
    return Check(
        f"the owner {FOLLOWER} was down, fell behind, and was installed", holds, fact if holds else "it was not"
    )


def _worker_was_replaced(story: LogStory) -> Check:
    """What its jobs were about is compacted all the same: by themselves with larger tokens, or by later ones, when an
    owner has deleted their sources meanwhile.
    """
    accident = story.accident
    done = accident.survived(story.seen)
    again = [job for job in story.seen.jobs if job.metadata.name in accident.jobs and was_outdated(job)]
    fact = f"{accident.worker or 'no worker'} was killed; {len(done)} of {len(accident.jobs)} jobs done since"
    return Check(
        "a worker was killed in the middle of a job, and the next one did its work",
        accident.replaced(story.seen) and len(done) + len(again) == len(accident.jobs) > 0,
        f"{fact}, {len(again)} planned again" if again else fact,
    )


def _same_content(story: LogStory) -> Check:
    before, after = story.before, story.after
    fact = f"{after.entries} entries, sha256 {after.fingerprint[:12]}"
    same = (before.fingerprint, before.entries, before.unreadable) == (
        after.fingerprint,
        after.entries,
        after.unreadable,
    )
    if not same:
        fact = f"{before.entries} entries {before.fingerprint[:12]} became {fact}"
    return Check(f"{before.path.name}: the readable live content is the same", same, fact)


def _reclaimed(story: LogStory) -> Check:
    reclaimed = story.before.disk_bytes - story.after.disk_bytes
    claimed = sum(receipt.bytes_reclaimed for receipt in story.receipts(story.before.path).values())
    return Check(
        f"{story.before.path.name}: disk space came back, as much as the receipts say",
        reclaimed > 0 and reclaimed == claimed,
        f"{reclaimed} = {claimed} bytes",
    )


def _receipts_agree(story: LogStory) -> Check:
    rewritten = [receipt for receipt in story.all_receipts if receipt.groups_committed]
    equal = [receipt for receipt in rewritten if receipt.fingerprint_before == receipt.fingerprint_after != ""]
    return Check(
        "every receipt shows equal fingerprints of its sources and outputs",
        bool(rewritten) and len(equal) == len(rewritten),
        f"{len(equal)} of {len(rewritten)} receipts of rewrites",
    )


def _every_job_ended(story: LogStory) -> Check:
    """An owner may delete what a job was to read; then its work is planned again, and it ends for the record."""
    jobs = story.seen.jobs
    succeeded = [job for job in jobs if job.status.state is JobState.SUCCEEDED]
    outdated = [job for job in jobs if was_outdated(job)]
    faulty = [job for job in jobs if job.status.state is JobState.FAULTY and not was_outdated(job)]
    elsewhere = [job for job in faulty if log_of(job) != story.archive.path]
    holds = bool(succeeded) and not elsewhere and len(succeeded) + len(outdated) + len(faulty) == len(jobs)
    fact = f"{len(succeeded)} succeeded, {len(faulty)} faulty"
    if outdated:
        fact += f", {len(outdated)} planned again: an owner came first"
    if elsewhere:
        fact += "".join(f"; {job.metadata.name}: {last_reason(job)}" for job in elsewhere)
    return Check("every job ended; only the damaged log has a faulty one", holds, fact)


def _damage_is_named(story: LogStory) -> Check:
    archive, policy = story.archive, story.seen.policy
    quarantined = policy.status.quarantined if policy is not None else ()
    named = [item for item in quarantined if Path(item.target) == archive.path and item.source == archive.damage.file]
    holds = len(named) == len(quarantined) == 1 and named[0].index == archive.damage.index
    fact = f"{named[0].source}, index {named[0].index}: {named[0].reason}" if named else "not named"
    return Check("the damaged segment, and only it, is named in the policy's status", holds, fact)


def _siblings_were_compacted(story: LogStory) -> Check:
    archive = story.archive
    damaged = archive.damage.file
    sources = {name for receipt in story.receipts(archive.path).values() for name in receipt.sources}
    kept = (archive.path / damaged).is_file() and damaged not in sources
    beside = any(name < damaged for name in sources) and any(name > damaged for name in sources)
    return Check(
        "its siblings on both sides were compacted and it was left as it is",
        kept and beside,
        f"{len(sources)} siblings",
    )


def _nothing_waits(story: LogStory) -> Check:
    left = sum(facts.waiting for facts in (story.after, *(facts for _, facts in story.members.values())))
    return Check("replaced names were deleted after their grace", left == 0, f"{left} left")
