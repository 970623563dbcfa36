"""The verdict: for every claim of the demo one check, made from what the store's client was promised, from files
measured before and after, and from what the API server says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from compaction.api.enums import JobState
from compaction.api.job.resource import JobReceipt
from compaction.local.demo.accident import Accident
from compaction.local.demo.check import Check
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.outdated import last_reason, was_outdated
from compaction.local.demo.segments.facts import LogFacts
from compaction.local.demo.segments.losses import OwnerLosses
from compaction.local.demo.segments.owners import FOLLOWER, LEADER
from compaction.local.demo.segments.reader import KeyReader
from compaction.local.demo.segments.receipts import commits_of, log_of, receipts_of
from compaction.local.demo.segments.scenario import Archive
from replicated_kv.workload import Comparison


@dataclass(frozen=True, slots=True)
class LogStory:
    """Everything that was seen, of which `checks` judges.

    `members`: each member's keys compared with what was acknowledged, and its log at the end. `moments`: when writes
    were acknowledged (epoch seconds); `changes`: how many keys were changed. `before`, `after`: the damaged log.
    """

    seen: DemoObservation
    archive: Archive
    before: LogFacts
    after: LogFacts
    members: Mapping[str, tuple[Comparison, LogFacts]]
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
    pauses = sum(any(first <= one < last for one in story.moments) for first, last in pairwise(commits))
    reclaimed = sum(one.bytes_reclaimed for one in story.receipts(facts.path).values())
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
    moments = [] if killed is None else [one for one in story.moments if one > killed.timestamp()]
    commits = (
        [] if killed is None else [one for one in story.commits(story.losses.owners.log_of(LEADER)) if one > killed]
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
    claimed = sum(one.bytes_reclaimed for one in story.receipts(story.before.path).values())
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
