"""The verdict on the demo of staging areas: one check for each claim, from writers, reader, records and objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

import numpy as np

from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob, JobReceipt
from compaction.errors import CompactionError
from compaction.local.tenants import Check
from compaction.staging.errors import CorruptRangeError, TooManyTriesError
from compaction.staging.flows.area import Area
from compaction.staging.flows.reading import Reader, RecordView, effective, read_consistently
from compaction.staging.format.columns import concatenated, tombstones
from compaction.staging.kind import MOST_TOMBSTONES, STAGING
from compaction.staging.staged.counters import Counts
from compaction.staging.staged.rows import after_prefix, layered
from compaction.staging.sweep import reachable
from demos.cluster import Accident, DemoObservation, Succession
from demos.proving import last_reason, was_outdated
from demos.staging.writers import (
    CLEANUP,
    COMMITTED,
    DAMAGED,
    EXPERIMENT,
    LOGS_PREFIX,
    PURGED,
    THRESHOLDS,
    TOTAL,
    BranchModel,
    BranchWriter,
    EntryColumns,
    WriteMoment,
    decode_entries,
    key_of,
)

# Staged and stored contents at one moment, from the records of the branches, the counters and the objects alone.


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """One branch. `commit`, `base`: ids, `base` is "" without a compacted base; `sealed`: sealed tokens; `counts`: what
    is in all of its tokens by their counters.
    """

    name: str
    commit: str
    base: str
    sealed: int
    counts: Counts


def look(area: Area) -> dict[str, BranchFacts]:
    """Every branch by its name. Raises DatabaseError."""
    records = [branch.record for branch in area.branches.every()]
    counted = area.counters.read({token for record in records for token in record.tokens})
    return {
        record.id: BranchFacts(
            record.id,
            record.commit_id,
            record.compacted_base,
            len(record.sealed_tokens),
            sum((counted.get(token, Counts()) for token in record.tokens), Counts()),
        )
        for record in records
    }


@dataclass(frozen=True, slots=True)
class BranchListing:
    """A listing of the first thousand records below `logs/`. `stepped_over`: tombstones below that prefix."""

    seconds: float
    records: int
    stepped_over: int


def list_logs(area: Area, branch: str, *, times: int = 1) -> BranchListing:
    """List and count; the fastest of so many times. Raises CompactionError."""
    reader, seconds, records = Reader(area), list[float](), 0
    for _ in range(times):
        began = time.monotonic()
        records = len(reader.list(branch, prefix=LOGS_PREFIX).entries)
        seconds.append(time.monotonic() - began)
    stop = after_prefix(LOGS_PREFIX)
    tokens = area.branches.get(branch).record.tokens
    staged = layered([area.tokens.changes(token, LOGS_PREFIX, stop) for token in tokens])
    return BranchListing(min(seconds), records, sum(int(np.count_nonzero(tombstones(batch))) for batch in staged))


@dataclass(frozen=True, slots=True)
class LeftOver:
    """What should be deleted: tokens that were compacted and have rows, objects that no commit or branch leads to."""

    tokens: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()

    @property
    def none(self) -> bool:
        return not (self.tokens or self.objects)


def left_over(area: Area, compacted: Iterable[str]) -> LeftOver:
    """`compacted`: tokens that became part of a base. Raises CompactionError."""
    stored = {item.path for item in area.ranges.stored()}
    with_rows = tuple(token for token in compacted if area.tokens.has_rows(token))
    return LeftOver(with_rows, tuple(sorted(stored - reachable(area))))


def due(facts: BranchFacts) -> bool:
    """Whether a branch has reached a threshold of the policy."""
    counts = facts.counts
    reached = {"tombstones": counts.tombstones, "sealedTokens": facts.sealed, "stagedWrites": counts.writes}
    return any(reached[name] >= least for name, least in THRESHOLDS.items())


# The reader that proves it: every record of each branch, a stretch of keys at a time, compared with its model.

STRETCH: Final = 50_000
PAUSE_SECONDS: Final = 0.05
REMEMBERED: Final = 3


@dataclass(frozen=True, slots=True)
class ProvedStretch:
    """The records `first` to `last` of a branch. `exact`: no change was made meanwhile; `seconds`: of the reading."""

    branch: str
    first: int
    last: int
    records: int
    different: tuple[int, ...]
    exact: bool
    seconds: float

    def difference(self) -> str:
        """What is not as it should be, for a person."""
        keys = ", ".join(key_of(number).decode() for number in self.different[:REMEMBERED])
        return f"{self.branch}: {len(self.different)} records differ: {keys}"


@dataclass
class StagingProver:
    """Reads and compares until `stopped`. `damaged`: the range that is damaged now, of branch `where`: there an error
    that names it is right, and counted in `refused`. `states`: of branches that were read (commit, base and tokens).
    """

    area: Area
    models: Mapping[str, BranchModel]
    stopped: threading.Event = field(default_factory=threading.Event)
    damaged: tuple[str, str] | None = None
    proven: int = 0
    exact: int = 0
    again: int = 0
    refused: int = 0
    records: int = 0
    states: set[tuple[str, ...]] = field(default_factory=set)
    different: list[str] = field(default_factory=list)
    error: CompactionError | None = None

    def run(self) -> None:
        """One branch after the other, from its first record to its last."""
        try:
            while not self.stopped.is_set():
                for name in self.models:
                    for first in range(0, TOTAL, STRETCH):
                        seconds = self._one(name, first, min(first + STRETCH, TOTAL))
                        # A third of the time at most: it is the workers' machine too.
                        if self.stopped.wait(max(PAUSE_SECONDS, 2 * seconds)):
                            return
        except CompactionError as error:
            self.error = error

    def prove(self, name: str) -> list[ProvedStretch]:
        """All of a branch. Raises CompactionError: it could not be read."""
        return [self._prove(name, first, min(first + STRETCH, TOTAL)) for first in range(0, TOTAL, STRETCH)]

    def _one(self, name: str, first: int, last: int) -> float:
        began, expected_damage = time.monotonic(), self.damaged
        try:
            self._prove(name, first, last)
        except TooManyTriesError:
            self.again += 1
        except CorruptRangeError as error:
            damage = self.damaged or expected_damage
            if damage is None or name != damage[0] or damage[1] not in str(error):
                raise
            self.refused += 1
        return time.monotonic() - began

    def _prove(self, name: str, first: int, last: int) -> ProvedStretch:
        began, model = time.monotonic(), self.models[name]
        moment = model.moment(first, last)
        found = self.read(name, first, last)
        since = model.since(moment)
        wrong = tuple(moment.differences(found, since).tolist())
        proved = ProvedStretch(name, first, last, len(found), wrong, not since, time.monotonic() - began)
        self.proven += not wrong
        self.exact += proved.exact and not wrong
        self.records += len(found)
        if wrong and len(self.different) < REMEMBERED:
            self.different.append(proved.difference())
        return proved

    def shows(self, reference: str, moment: WriteMoment) -> bool:
        """Whether a reference that no writer changes shows exactly the state of a moment. Raises CompactionError."""
        return not any(
            len(WriteMoment(first, moment.versions[first:last], 0).differences(self.read(reference, first, last), []))
            for first, last in ((at, min(at + STRETCH, TOTAL)) for at in range(0, TOTAL, STRETCH))
        )

    def read(self, reference: str, first: int, last: int) -> EntryColumns:
        """Every record from number `first` to `last`, as the reference shows them. Raises CompactionError."""
        stop = key_of(last) if last < TOTAL else None
        states: list[tuple[str, ...]] = []

        def read(view: RecordView) -> EntryColumns:
            states.append((reference, view.metarange_id, *view.tokens))
            return decode_entries(concatenated(list(effective(self.area, view, key_of(first), stop))))

        found = read_consistently(self.area, reference, read)
        self.states.add(states[-1])
        return found


# The verdict: for every claim of the demo one check, from what writers and reader counted, from the records of the
# branches and the objects, and from what the API server says.


@dataclass(frozen=True, slots=True)
class StagingStory:
    """Everything that was seen, of which `checks` judges.

    `final`: the reader's last reading of each branch; `committed`: whether the last commit of the branch that commits
    shows what it should. `before`, `after`: the branches when the policy was applied, and now; `listed`: a listing
    below `logs/` then and now. `damaged`: id of the damaged range; `named`: what was said of it. `restored`: when it
    was as before. `measured`: the most tombstones of a branch, as the policy's status said. `leaks`: where a password
    was found.
    """

    seen: DemoObservation
    writers: Mapping[str, BranchWriter]
    prover: StagingProver
    final: Mapping[str, Sequence[ProvedStretch]]
    committed: bool
    before: Mapping[str, BranchFacts]
    after: Mapping[str, BranchFacts]
    listed: tuple[BranchListing, BranchListing]
    accident: Accident
    succession: Succession
    damaged: str
    named: str
    restored: datetime | None
    measured: float
    left: LeftOver
    leaks: Sequence[str]

    @property
    def receipts(self) -> Mapping[str, JobReceipt]:
        """By job."""
        return {job.metadata.name: job.status.receipt for job in self.seen.jobs if job.status.receipt is not None}

    @property
    def swaps(self) -> list[datetime]:
        """When bases were swapped."""
        return sorted(receipt.committed_at for receipt in self.receipts.values() if receipt.committed_at is not None)

    def receipts_of(self, branch: str) -> list[JobReceipt]:
        """Of the jobs of a branch."""
        jobs = {job.metadata.name for job in self.seen.jobs if branch_of(job) == branch}
        return [receipt for name, receipt in self.receipts.items() if name in jobs]


def branch_of(job: CompactionJob) -> str:
    """The branch that a job compacts."""
    return job.spec.target.rpartition("/")[2]


def checks(story: StagingStory) -> list[Check]:
    """Everything the demo claims."""
    return [
        *(_same_content(story, name) for name in story.writers),
        _at_every_moment(story),
        _written_meanwhile(story),
        _commits_went_on(story),
        _never_committed(story),
        _listing_steps_over_little(story),
        _receipts_agree(story),
        _only_touched_ranges(story),
        _every_job_ended(story),
        _damage_is_named(story),
        _restored(story),
        _worker_was_replaced(story),
        _coordinator_was_replaced(story),
        _nothing_is_due(story),
        _nothing_is_left(story),
        Check("no password is in any object or log", not story.leaks, ", ".join(story.leaks) or "none found"),
    ]


def _same_content(story: StagingStory, name: str) -> Check:
    model, read = story.writers[name].model, story.final.get(name, ())
    records = sum(item.records for item in read)
    holds = bool(read) and all(item.exact and not item.different for item in read) and records == model.records
    fact = f"{records} records after {model.acknowledged} changes"
    wrong = next((item.difference() for item in read if item.different), "")
    return Check(f"{name}: it shows what its writer was acknowledged", holds, f"{fact}; {wrong}" if wrong else fact)


def _at_every_moment(story: StagingStory) -> Check:
    prover = story.prover
    holds = prover.proven > 0 and len(prover.states) > len(story.writers) and not prover.different
    fact = f"{prover.proven} readings of {len(prover.states)} states, {prover.records} records"
    if prover.again:
        fact += f", {prover.again} once more"
    if not holds or prover.error is not None:
        fact = str(prover.error) if prover.error is not None else "; ".join(prover.different) or fact
    return Check("a reader found nothing else at any moment", holds and prover.error is None, fact)


def _written_meanwhile(story: StagingStory) -> Check:
    """On every branch, between the first and the last swap, and between most of them."""
    swaps = [moment.timestamp() for moment in story.swaps]
    during = {
        name: sum(swaps[0] <= moment <= swaps[-1] for moment in writer.moments) if swaps else 0
        for name, writer in story.writers.items()
    }
    moments = [moment for writer in story.writers.values() for moment in writer.moments]
    pauses = sum(any(first <= moment < last for moment in moments) for first, last in pairwise(swaps))
    return Check(
        "all writers kept writing while branches were compacted",
        pauses > 1 and all(during.values()),
        f"{sum(during.values())} changes between the first and the last of {len(swaps)} compactions",
    )


def _commits_went_on(story: StagingStory) -> Check:
    writer = story.writers[COMMITTED.name]
    swaps = [moment.timestamp() for moment in story.swaps]
    return Check(
        f"{COMMITTED.name} was committed all the time, and its last commit is complete",
        writer.commits > 1 and story.committed and len(swaps) > 1,
        f"{writer.commits} commits",
    )


def _never_committed(story: StagingStory) -> Check:
    name = EXPERIMENT.name
    before, after = story.before[name], story.after[name]
    receipts = story.receipts_of(name)
    return Check(
        f"{name} was compacted without a commit",
        before.commit == after.commit and bool(after.base) and len(receipts) > 0,
        f"{len(receipts)} compactions; {after.counts.writes} of {story.writers[name].model.writes} writes are staged",
    )


def _listing_steps_over_little(story: StagingStory) -> Check:
    before, after = story.listed
    holds = (
        before.stepped_over >= PURGED and story.measured >= PURGED and after.stepped_over < before.stepped_over / 100
    )
    # The times are shown and decide nothing: beside other work of the machine they are no measure of the listing.
    return Check(
        f"a listing of {CLEANUP.name} does not step over a million tombstones any more",
        holds,
        f"{before.stepped_over} -> {after.stepped_over} tombstones, "
        f"{before.seconds * 1000:.0f} -> {after.seconds * 1000:.0f} ms",
    )


def _receipts_agree(story: StagingStory) -> Check:
    receipts = story.receipts.values()
    equal = sum(STAGING.proves_equal(receipt) and bool(receipt.fingerprint_before) for receipt in receipts)
    return Check(
        "every receipt shows equal fingerprints of what was staged and what was written",
        0 < equal == len(receipts),
        f"{equal} of {len(receipts)} receipts",
    )


def _only_touched_ranges(story: StagingStory) -> Check:
    """The changes of `EXPERIMENT` are below `tables/`: a tenth of the records."""
    receipts = story.receipts_of(EXPERIMENT.name)
    most = max((receipt.records for receipt in receipts), default=0)
    shown = story.writers[EXPERIMENT.name].model.records
    return Check(
        "only touched ranges were written",
        0 < most < shown / 2,
        f"a compaction of {EXPERIMENT.name} wrote at most {most} of {shown} records",
    )


def _every_job_ended(story: StagingStory) -> Check:
    """One may lose to a commit, and is planned again; on the damaged branch they fail as long as it is damaged."""
    ends = {JobState.SUCCEEDED: 0, JobState.FAULTY: 0}
    others = []
    for job in story.seen.jobs:
        if job.status.state not in ends:
            others.append(f"{job.metadata.name} is {job.status.state.value}")
            continue
        ends[job.status.state] += 1
        if job.status.state is JobState.FAULTY and not was_outdated(job) and branch_of(job) != DAMAGED.name:
            others.append(f"{job.metadata.name} of {branch_of(job)}: {last_reason(job)}")
    fact = f"{ends[JobState.SUCCEEDED]} succeeded, {ends[JobState.FAULTY]} lost to a commit or found the damage"
    return Check("every job ended as it should", bool(story.seen.jobs) and not others, "; ".join(others) or fact)


def _damage_is_named(story: StagingStory) -> Check:
    return Check(
        f"the damaged range of {DAMAGED.name} was named, and readers of it got an error",
        story.damaged in story.named and story.prover.refused > 0,
        f"{story.damaged[:12]}...; {story.prover.refused} readings refused" if story.named else "not named",
    )


def _restored(story: StagingStory) -> Check:
    receipts = story.receipts_of(DAMAGED.name)
    since = [
        receipt
        for receipt in receipts
        if story.restored and receipt.committed_at is not None and receipt.committed_at > story.restored
    ]
    others = [name for name in story.writers if name not in (DAMAGED.name, COMMITTED.name)]
    meanwhile = all(story.receipts_of(name) for name in others)
    return Check(
        f"other branches were compacted meanwhile, {DAMAGED.name} when its range was restored",
        len(since) == len(receipts) > 0 and meanwhile,
        f"{len(since)} compactions of {DAMAGED.name}, all of them since",
    )


def _worker_was_replaced(story: StagingStory) -> Check:
    accident = story.accident
    done = accident.survived(story.seen)
    lost = [job for job in story.seen.jobs if job.metadata.name in accident.jobs and was_outdated(job)]
    return Check(
        "the jobs of a killed worker were done by the next, with larger tokens",
        bool(done) and len(done) + len(lost) == len(accident.jobs),
        f"{accident.worker or 'no worker'} was killed; {len(done)} of {len(accident.jobs)} jobs done since",
    )


def _coordinator_was_replaced(story: StagingStory) -> Check:
    done = story.succession.done_since(story.seen)
    return Check(
        "the coordinator was killed, and the other replica went on",
        bool(done),
        f"{story.succession.killed or 'none'} was killed; {len(done)} jobs planned and done by {story.seen.leader}",
    )


def _nothing_is_due(story: StagingStory) -> Check:
    late = [name for name, facts in story.after.items() if due(facts)]
    policy = story.seen.policy
    debt = policy.status.debt if policy is not None else None
    said = f"{debt.measure(MOST_TOMBSTONES):g} tombstones at most on a branch" if debt is not None else "unknown"
    return Check("no branch is due any more", not late and debt is not None, ", ".join(late) or said)


def _nothing_is_left(story: StagingStory) -> Check:
    compacted = sum(len(receipt.sources) for receipt in story.receipts.values())
    return Check(
        "compacted tokens and replaced ranges were deleted after their grace",
        compacted > 0 and story.left.none,
        f"{compacted} tokens compacted, {len(story.left.tokens)} left; "
        f"{len(story.left.objects)} objects that nothing leads to",
    )
