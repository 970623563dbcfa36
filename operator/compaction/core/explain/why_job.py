"""Explains in sentences why a job is as it is: a pure function of the job, its policy, the Leases and the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from compaction.api.conditions import get_condition
from compaction.api.enums import AttemptOutcome, ConditionType, JobReason, JobState
from compaction.api.job.job import AttemptStatus, CompactionJob, JobReceipt
from compaction.api.job.job_status import CompactionJobStatus
from compaction.api.names import ANNOTATION_PROGRESS
from compaction.api.policy.policy import CompactionPolicy, is_superseded
from compaction.api.text.printing import format_bytes, format_cpu, number_in, plural
from compaction.core.explain.explanation import Explanation, ExplanationBuilder, first_of, tell_coordinator
from compaction.core.explain.words import job_words, wait_words
from compaction.core.meaning import Names, meaning_of
from compaction.leases.record import Lease
from compaction.registry import all_kinds, kind_of_job

# Changes that a job made for reads, from its receipt: measures before and after.


def changes_of(receipt: JobReceipt) -> str:
    """`Before and after it: tombstones 999,999 and 0, sealed tokens 12 and 0.`; "" without measures."""
    changed = _changes(receipt)
    return f"Before and after it: {changed}." if changed else ""


def last_change(jobs: Iterable[CompactionJob]) -> str:
    """The same of the job that succeeded last, with its name and target; "" when none has measures."""
    done = [job for job in jobs if job.status.state is JobState.SUCCEEDED and _receipt_changes(job)]
    if not done:
        return ""
    last = max(done, key=lambda job: job.status.finished_at or datetime.min.replace(tzinfo=UTC))
    return f"Before and after job {last.metadata.name} of {last.spec.target}: {_receipt_changes(last)}."


def _receipt_changes(job: CompactionJob) -> str:
    return _changes(job.status.receipt) if job.status.receipt is not None else ""


def _changes(receipt: JobReceipt) -> str:
    titles = {measure.name: measure.title.lower() for kind in all_kinds() for measure in kind.measures}
    return ", ".join(
        f"{titles.get(measure.name, measure.name)} {measure.before:,.0f} and {measure.after:,.0f}"
        for measure in receipt.measures
    )


def explain_job(
    job: CompactionJob, policy: CompactionPolicy | None, leases: Sequence[Lease] | None, now: datetime
) -> Explanation:
    """Explain what the job does, where it is and since when, what happens next, and what a person can do.

    Args:
        policy: the one that `spec.policyRef` names, None when there is none.
        leases: those of the job's namespace; None when they may not be read.
    """
    meta, status = job.metadata, job.status
    names = Names(meta.namespace, job.spec.policy_ref.name, meta.name)
    builder = ExplanationBuilder(names, now)
    if job.spec.sources.chosen is not None:
        builder.debt(kind_of_job(job.spec.kind).does(job.spec))
    tell_coordinator(builder, leases, now, namespace=meta.namespace, seen=status.observed_generation >= 0)
    match status.state:
        case JobState.UNASSIGNED | JobState.ABANDONED:
            _explain_waiting(builder, job, policy)
        case JobState.IN_PROGRESS:
            _explain_running(builder, job, leases)
        case JobState.FAULTY if policy is not None and (
            _verdict(job)[0] == JobReason.SOURCE_CORRUPT and is_superseded(job, policy.status.quarantined)
        ):
            _explain_superseded(builder, job)
        case JobState.FAULTY:
            _explain_parked(builder, job)
        case JobState.SUCCEEDED:
            _explain_receipt(builder, job)
    _explain_skipped(builder, job)
    if meta.is_deleting:
        builder.state("It is being deleted.")
    return builder.told(f"CompactionJob {meta.namespace}/{meta.name}: {status.state}")


def progress_of(job: CompactionJob, leases: Sequence[Lease] | None) -> str:
    """`37% done`."""
    return f"{progress_percent(job, leases) or 0}% done"


def progress_percent(job: CompactionJob, leases: Sequence[Lease] | None) -> int | None:
    """The Lease of a running job has it exactly, the status only now and then; None before the first attempt."""
    lease = _lease_of(job, leases) if job.status.state is JobState.IN_PROGRESS else None
    exact = number_in(lease.annotations.get(ANNOTATION_PROGRESS), limit=100) if lease is not None else None
    return job.status.progress_percent if exact is None else exact


def why_parked(job: CompactionJob, *, brief: bool) -> str:
    """The reason and message of a Faulty job. `brief`: without the message, which stands at the quarantined source."""
    reason, message = _verdict(job)
    if brief and reason == JobReason.SOURCE_CORRUPT:
        return f"{reason}."
    return f"{reason}. {message}" if message else f"{reason}."


def _lease_of(job: CompactionJob, leases: Sequence[Lease] | None) -> Lease | None:
    return next((lease for lease in leases or () if lease.name == job.metadata.name), None)


def _last(job: CompactionJob) -> AttemptStatus | None:
    return job.status.attempts[-1] if job.status.attempts else None


def _verdict(job: CompactionJob) -> tuple[str, str]:
    """Reason and message of the condition Failed; without it, of the last attempt."""
    failed = get_condition(job.status.conditions, ConditionType.FAILED)
    if failed is not None:
        return failed.reason, failed.message
    last = _last(job)
    return (last.reason, last.message) if last is not None else ("Faulty", "")


def _explain_waiting(builder: ExplanationBuilder, job: CompactionJob, policy: CompactionPolicy | None) -> None:
    status, last = job.status, _last(job)
    if last is not None:
        _explain_attempt(builder, last)
    if status.waiting is not None:
        meaning = meaning_of(wait_words(), status.waiting.reason)
        said = f"It has waited {builder.age(status.waiting.since)} for {status.waiting.reason}"
        builder.state(builder.once(said, meaning.says, status.waiting.message))
        builder.consequences(meaning)
        return
    if policy is None:
        meaning = meaning_of(wait_words(), "PolicyNotFound")
        builder.state(f"It waits for PolicyNotFound: {meaning.says}")
        builder.consequences(meaning)
        return
    waiting = policy.status.waiting
    if waiting is None:
        builder.state(f"It has waited {builder.age(_waits_since(job))} for a worker.")
        builder.next("It is assigned to the next worker with a free slot; jobs of a lower level go first.")
        return
    meaning = meaning_of(wait_words(), waiting.reason)
    said = f"It has waited {builder.age(_waits_since(job))}; most jobs of its policy wait for {waiting.reason}"
    builder.state(builder.once(said, meaning.says, waiting.message))
    builder.consequences(meaning)


def _waits_since(job: CompactionJob) -> datetime | None:
    last = _last(job)
    return last.ended_at if last is not None and last.ended_at is not None else job.metadata.creation_timestamp


def _explain_attempt(builder: ExplanationBuilder, attempt: AttemptStatus) -> None:
    """Explain how the last attempt ended, and what follows from it."""
    meaning = meaning_of(job_words(), attempt.reason)
    charged = "charged" if attempt.charged else "not charged"
    said = (
        f"Attempt {attempt.token} on {attempt.worker} {_ended(attempt)} {builder.age(attempt.ended_at)} ago ({charged})"
    )
    builder.state(builder.said(f"{said}, {attempt.reason}: {meaning.says}", attempt.message))
    builder.consequences(meaning)


def _ended(attempt: AttemptStatus) -> str:
    return {
        AttemptOutcome.FAILED: "failed",
        AttemptOutcome.EXPIRED: "expired",
        AttemptOutcome.LOST: "was lost",
        AttemptOutcome.REVOKED: "was revoked",
    }.get(attempt.outcome, "ended")


def _explain_running(builder: ExplanationBuilder, job: CompactionJob, leases: Sequence[Lease] | None) -> None:
    status = job.status
    meaning = meaning_of(job_words(), "Assigned")
    where = f"{status.worker} with token {status.fencing_token}"
    builder.state(
        f"It has run on {where} for {builder.age(status.assigned_at)}, {progress_of(job, leases)}: {meaning.says}"
    )
    if leases is not None and _lease_of(job, leases) is None:
        builder.state("Its Lease is gone: the coordinator is about to give the job to another worker.")
    if status.failures:
        builder.state(f"{plural(status.failures, 'attempt')} before this one failed; kubectl describe has the reasons.")
    builder.consequences(meaning)


def _explain_parked(builder: ExplanationBuilder, job: CompactionJob) -> None:
    reason, message = _verdict(job)
    meaning = meaning_of(job_words(), reason)
    said = f"It has been parked for {builder.age(job.status.finished_at)}, {reason}: {meaning.says}"
    builder.state(builder.said(said, message))
    builder.consequences(meaning)
    last = _last(job)
    if last is not None and last.reason != reason:
        _explain_attempt(builder, last)
    builder.state(_used(job.status))


def _explain_superseded(builder: ExplanationBuilder, job: CompactionJob) -> None:
    """Explain that the problem of the job is over: the advice of its reason does not apply to this job any more."""
    reason, message = _verdict(job)
    ended = builder.age(job.status.finished_at)
    builder.state(
        builder.said(
            f"It ended {ended} ago, {reason}: the damaged sources are not in quarantine any more, and the job is kept "
            "as a record.",
            message,
        )
    )
    builder.next("What is left of its sources is planned in new jobs.")


def _explain_receipt(builder: ExplanationBuilder, job: CompactionJob) -> None:
    receipt = job.status.receipt
    meaning = meaning_of(job_words(), "Succeeded")
    builder.state(f"It succeeded {builder.age(job.status.finished_at)} ago: {meaning.says}")
    if receipt is not None:
        kind = kind_of_job(job.spec.kind)
        equal = "The live content read back is equal to that of the sources"
        proof = equal if kind.proves_equal(receipt) else "THE FINGERPRINTS DIFFER"
        builder.state(f"{kind.became(receipt)} {proof}.")
        builder.state(changes_of(receipt))
    builder.state(_used(job.status))
    builder.consequences(meaning)


def _used(status: CompactionJobStatus) -> str:
    """`Its attempts took 12.3s of CPU, ...`; "" when none could say. The sums lack those that could not."""
    usage = status.usage
    if usage is None or usage.cpu_seconds is None:
        return ""
    executors = format_cpu(usage.executor_cpu_seconds or 0.0)
    moved = (("read", usage.bytes_read), ("wrote", usage.bytes_written))
    bytes_moved = "".join(f", {verb} {format_bytes(count)}" for verb, count in moved if count is not None)
    peak = usage.executor_peak_bytes
    most = f"; a task had {format_bytes(peak)} of memory at most" if peak is not None else ""
    ended = [attempt for attempt in status.attempts if attempt.ended_at is not None]
    unknown = sum(not attempt.is_measured for attempt in ended)
    beside = f", beside what {unknown} of {plural(len(ended), 'attempt')} did not report" if unknown else ""
    took = f"Its attempts took {format_cpu(usage.cpu_seconds)} of CPU, {executors} in executors{bytes_moved}{most}"
    return f"{took}{beside}."


def _explain_skipped(builder: ExplanationBuilder, job: CompactionJob) -> None:
    skipped = {
        f"{item.source} was left as it is": builder.said(f"{item.reason}.", item.message) for item in job.status.skipped
    }
    builder.state(*first_of(skipped, "sources were left"))
