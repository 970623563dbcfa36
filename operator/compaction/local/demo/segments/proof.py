"""The verdict: for every claim of the demo one check, made from files measured before and after and from what the API
server says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compaction.api.enums import JobState
from compaction.api.job.resource import CompactionJob, JobReceipt
from compaction.local.demo.check import Check
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.segments.facts import LogFacts
from compaction.local.demo.segments.scenario import Scenario


@dataclass(frozen=True, slots=True)
class LogProof:
    """One line of the proof: a log before and after, and the receipts of its jobs."""

    name: str
    before: LogFacts
    after: LogFacts
    receipts: Mapping[str, JobReceipt]

    @property
    def same_content(self) -> bool:
        """Equal readable live content: same entries, same indexes, terms, lengths and checksums, and nothing newly
        unreadable.
        """
        before, after = self.before, self.after
        return (before.fingerprint, before.entries, before.unreadable) == (
            after.fingerprint,
            after.entries,
            after.unreadable,
        )

    @property
    def reclaimed(self) -> int:
        return self.before.disk_bytes - self.after.disk_bytes

    @property
    def claimed(self) -> int:
        """Reclaimed bytes, by the receipts."""
        return sum(receipt.bytes_reclaimed for receipt in self.receipts.values())


def prove_logs(before: Sequence[LogFacts], after: Mapping[Path, LogFacts], seen: DemoObservation) -> list[LogProof]:
    return [
        LogProof(name=facts.path.name, before=facts, after=after[facts.path], receipts=_receipts(facts.path, seen.jobs))
        for facts in before
    ]


def _receipts(path: Path, jobs: Sequence[CompactionJob]) -> dict[str, JobReceipt]:
    """The receipts of one log's jobs, by job name."""
    return {job.metadata.name: job.status.receipt for job in jobs if log_of(job) == path and job.status.receipt}


def log_of(job: CompactionJob) -> Path | None:
    """The log that a job is about."""
    sources = job.spec.sources.segment_log
    return None if sources is None else Path(sources.path)


def checks(
    proofs: Sequence[LogProof], seen: DemoObservation, scenario: Scenario, *, replicas_alive: int
) -> list[Check]:
    """Everything the demo claims."""
    return [
        *(_same_content(proof) for proof in proofs),
        *(_reclaimed(proof) for proof in proofs),
        _receipts_agree(proofs),
        _every_job_ended(seen, scenario),
        _damage_is_named(seen, scenario),
        _siblings_were_compacted(proofs, scenario),
        _nothing_waits(proofs),
        Check(
            "one replica led while the other stood by",
            replicas_alive == 2 and seen.leader is not None,
            f"led by {seen.leader}",
        ),
    ]


def _same_content(proof: LogProof) -> Check:
    fact = f"{proof.after.entries} entries, sha256 {proof.after.fingerprint[:12]}"
    if not proof.same_content:
        fact = f"{proof.before.entries} entries {proof.before.fingerprint[:12]} became {fact}"
    return Check(f"{proof.name}: the readable live content is the same", proof.same_content, fact)


def _reclaimed(proof: LogProof) -> Check:
    holds = proof.reclaimed > 0 and proof.reclaimed == proof.claimed
    return Check(
        f"{proof.name}: disk space came back, as much as the receipts say",
        holds,
        f"{proof.reclaimed} = {proof.claimed} bytes",
    )


def _receipts_agree(proofs: Sequence[LogProof]) -> Check:
    receipts = [receipt for proof in proofs for receipt in proof.receipts.values()]
    rewritten = [receipt for receipt in receipts if receipt.groups_committed]
    equal = [receipt for receipt in rewritten if receipt.fingerprint_before == receipt.fingerprint_after != ""]
    return Check(
        "every receipt shows equal fingerprints of its sources and outputs",
        bool(rewritten) and len(equal) == len(rewritten),
        f"{len(equal)} of {len(rewritten)} receipts of rewrites",
    )


def _every_job_ended(seen: DemoObservation, scenario: Scenario) -> Check:
    succeeded = [job for job in seen.jobs if job.status.state is JobState.SUCCEEDED]
    faulty = [job for job in seen.jobs if job.status.state is JobState.FAULTY]
    elsewhere = [job.metadata.name for job in faulty if log_of(job) != scenario.damaged]
    holds = bool(succeeded) and not elsewhere and len(succeeded) + len(faulty) == len(seen.jobs)
    return Check(
        "every job ended; only the damaged log has a faulty one",
        holds,
        f"{len(succeeded)} succeeded, {len(faulty)} faulty",
    )


def _damage_is_named(seen: DemoObservation, scenario: Scenario) -> Check:
    quarantined = seen.policy.status.quarantined if seen.policy is not None else ()
    named = [
        item for item in quarantined if Path(item.target) == scenario.damaged and item.source == scenario.damage.file
    ]
    holds = len(named) == len(quarantined) == 1 and named[0].index == scenario.damage.index
    fact = f"{named[0].source}, index {named[0].index}: {named[0].reason}" if named else "not named"
    return Check("the damaged segment, and only it, is named in the policy's status", holds, fact)


def _siblings_were_compacted(proofs: Sequence[LogProof], scenario: Scenario) -> Check:
    proof = next(proof for proof in proofs if proof.before.path == scenario.damaged)
    sources = {name for receipt in proof.receipts.values() for name in receipt.sources}
    kept = (scenario.damaged / scenario.damage.file).is_file() and scenario.damage.file not in sources
    beside = any(name < scenario.damage.file for name in sources) and any(
        name > scenario.damage.file for name in sources
    )
    return Check(
        "its siblings on both sides were compacted and it was left as it is",
        kept and beside,
        f"{len(sources)} siblings",
    )


def _nothing_waits(proofs: Sequence[LogProof]) -> Check:
    left = sum(proof.after.waiting for proof in proofs)
    return Check("replaced names were deleted after their grace", left == 0, f"{left} left")
