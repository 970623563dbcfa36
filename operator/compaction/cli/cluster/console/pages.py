"""The content of the console's pages, as plain data: pure functions of the objects and a time.

Times are RFC 3339, so that the browser lets ages grow by itself; sentences that have ages in them (`why`) are of the
time of the page. Names and messages are text that anybody may have written: the browser shows them as text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import yaml

from compaction.api.base import ApiModel
from compaction.api.catalog.catalog import ANSWERED, CatalogCompaction
from compaction.api.conditions import get_condition
from compaction.api.enums import AttemptOutcome, ConditionType, JobState, PlanApproval
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy, is_superseded
from compaction.api.requests import RequestOutcome
from compaction.api.text.printing import plural
from compaction.catalogs.cli.catalog_view import catalog_data, participant_data
from compaction.catalogs.explaining import CATALOG_WORDS, explain_catalog
from compaction.cli.cluster.status_view import (
    Data,
    is_current,
    job_data,
    policy_data,
    round_data,
    run_data,
    sorted_jobs,
    time_text,
)
from compaction.cli.previews import Preview, preview_lines, preview_rows
from compaction.core.explain.explanation import MISSING, Coordination, coordination
from compaction.core.explain.why_job import explain_job
from compaction.core.explain.why_policy import explain_policy
from compaction.core.explain.words import job_words, left_out_words, policy_words
from compaction.core.meaning import Names, meaning_of
from compaction.leases.record import Lease
from compaction.registry import kind_of

MOST_FAILURES: Final = 50
"""Objects that are named under one reason; of the others only the count is shown."""
_KEPT_SECONDS: Final = frozenset({"etaSeconds", "tookSeconds", "workSeconds", "cpuSeconds"})
"""Of the fields that are seconds, those that do not grow by themselves."""


@dataclass(frozen=True, slots=True)
class Coordinators:
    """The coordinators' Leases as this user may read them (None: not), and whether they are those of all namespaces."""

    leases: Sequence[Lease] | None
    complete: bool

    def of(self, namespace: str, now: datetime) -> Coordination:
        """The coordinator of a namespace."""
        return coordination(self.leases, namespace, now, complete=self.complete)


def _timeless(data: Data) -> Data:
    """Without ages: the times that they are counted from stand beside them."""
    return {
        key: _timeless(value) if isinstance(value, dict) else value
        for key, value in data.items()
        if key in _KEPT_SECONDS or not (key.endswith("Seconds") or key == "seconds")
    }


# The fleet: a row per object, those that need a person first.


def policy_row(policy: CompactionPolicy, coordinators: Coordinators, now: datetime) -> Data:
    """One policy of the table."""
    coordinator = coordinators.of(policy.metadata.namespace, now)
    row = _timeless(policy_data(policy, now, coordinator))
    row["coordinator"].pop("holder")
    status = policy.status
    if status.waiting is not None:
        row["waiting"]["since"] = time_text(status.waiting.since)
    return row | {
        "kind": "policy",
        "needs": _needs(policy, coordinator, now),
        "lastScanAt": time_text(status.last_sense_time),
        "intervalS": float(policy.spec.trigger.interval),
        "createdAt": time_text(policy.metadata.creation_timestamp),
        "labels": dict(policy.metadata.labels),
    }


def _needs(policy: CompactionPolicy, coordinator: Coordination, now: datetime) -> list[str]:
    """In a few words each, what only a person can do."""
    status = policy.status
    ready = get_condition(status.conditions, ConditionType.READY)
    needs = []
    # False is what a person has to end; Unknown and True end by themselves.
    if ready is not None and ready.status.value == "False":
        needs.append(ready.reason)
    if status.plan is not None and status.plan.approval is PlanApproval.PENDING:
        needs.append("ApprovalPending")
    if status.faulty:
        needs.append(f"{plural(status.faulty, 'faulty job')}")
    if status.quarantined:
        needs.append(f"{plural(len(status.quarantined), 'quarantined source')}")
    if coordinator.state in MISSING:
        needs.append("no coordinator")
    return needs


def catalog_row(catalog: CatalogCompaction, coordinators: Coordinators, now: datetime) -> Data:
    """One catalog of the table."""
    coordinator = coordinators.of(catalog.metadata.namespace, now)
    row = _timeless(catalog_data(catalog, now, coordinator))
    row["coordinator"].pop("holder")
    needs = [row["reason"]] if row["ready"] == "False" else []
    return row | {
        "kind": "catalog",
        "needs": needs + (["no coordinator"] if coordinator.state in MISSING else []),
        "createdAt": time_text(catalog.metadata.creation_timestamp),
        "labels": dict(catalog.metadata.labels),
    }


# One policy, one job, one catalog.


def policy_page(
    policy: CompactionPolicy, jobs: Sequence[CompactionJob], coordinators: Coordinators, now: datetime
) -> Data:
    """All about one policy: why, plan, jobs with their attempts, left out, history, cost and gain, the preview."""
    status, kind = policy.status, kind_of(policy.spec.store)
    # `unmade` is a list of jobs for the next coordinator, of up to 700 kB, and nothing for a person.
    plan = status.plan
    return {
        "row": policy_row(policy, coordinators, now),
        "why": explain_policy(policy, jobs, coordinators.leases, now).to_object(),
        "measures": [list(pair) for pair in kind.rows(status)],
        "plan": None if plan is None else plan.to_object() | {"isCurrent": is_current(policy), "unmade": ""},
        "leftOut": [] if plan is None else [row.to_object() | _meaning(row.reason) for row in plan.left_out],
        "jobs": [_job_row(job, now) for job in sorted_jobs(jobs)],
        "workers": [worker.to_object() for worker in status.worker_statuses],
        "quarantined": [source.to_object() for source in status.quarantined[:MOST_FAILURES]],
        "history": [_timeless(run_data(run, now)) for run in reversed(status.history)],
        "status": status.to_object(),
        "suspended": policy.spec.suspend,
        "spec": _spec_text(policy.spec),
        "preview": preview_data(status.preview),
    }


def preview_data(preview: Preview | None) -> Data | None:
    """The last preview as `plan -f` prints it; None when none was asked for."""
    if preview is None:
        return None
    return {
        "at": time_text(preview.handled_at),
        "refused": f"{preview.reason}: {preview.message}" if preview.outcome is RequestOutcome.REFUSED else None,
        "tables": [{"title": title, "rows": rows} for title, rows in preview_rows(preview).items()],
        "lines": preview_lines(preview),
    }


def _spec_text(spec: ApiModel) -> str:
    """A spec as its user would write it."""
    return yaml.safe_dump(spec.to_object(), sort_keys=False)


def _meaning(reason: str) -> Data:
    meaning = meaning_of(left_out_words(), reason)
    return {"says": meaning.says, "next": meaning.next}


def _job_row(job: CompactionJob, now: datetime) -> Data:
    status = job.status
    return _timeless(job_data(job, now)) | {
        "startedAt": time_text(status.assigned_at),
        "endedAt": time_text(status.finished_at),
        "createdAt": time_text(job.metadata.creation_timestamp),
        "attempts": [attempt.to_object() for attempt in status.attempts],
        "isFaulty": status.state is JobState.FAULTY,
    }


def job_page(job: CompactionJob, policy: CompactionPolicy | None, coordinators: Coordinators, now: datetime) -> Data:
    """All about one job: its attempts, its receipt with the fingerprints, what was skipped."""
    # Of duplicates that were left out the fingerprints differ by theirs: the commit has proved that, not this page.
    status, receipt = job.status, job.status.receipt
    return {
        "row": _job_row(job, now) | {"namespace": job.metadata.namespace, "policy": job.spec.policy_ref.name},
        "why": explain_job(job, policy, coordinators.leases, now).to_object(),
        "spec": _spec_text(job.spec),
        "receipt": None if receipt is None else receipt.to_object(),
        "isProven": receipt is not None
        and bool(receipt.fingerprint_before)
        and not receipt.fingerprint_duplicates
        and receipt.fingerprint_before == receipt.fingerprint_after,
        "skipped": [source.to_object() for source in status.skipped[:MOST_FAILURES]],
        "worker": status.worker,
    }


def catalog_page(catalog: CatalogCompaction, coordinators: Coordinators, now: datetime) -> Data:
    """All about one catalog: the history that is kept, who pins it since when, the last rounds."""
    status = catalog.status
    return {
        "row": catalog_row(catalog, coordinators, now),
        "why": explain_catalog(catalog, coordinators.leases, now).to_object(),
        "participants": [
            _timeless(participant_data(item, now))
            | {"answered": item.reason == ANSWERED, "transactionAt": time_text(item.oldest_transaction)}
            for item in status.participants
        ],
        "history": [_timeless(round_data(record)) for record in reversed(status.history)],
        "status": status.to_object(),
        "suspended": catalog.spec.suspend,
        "spec": _spec_text(catalog.spec),
        "preview": preview_data(status.preview),
    }


# Failures, by reason.


def failures_page(
    policies: Iterable[CompactionPolicy],
    catalogs: Iterable[CatalogCompaction],
    jobs: Iterable[CompactionJob],
) -> list[Data]:
    """One entry per reason, the most frequent first: what it means, what to do, and which objects have it. `jobs`: the
    Faulty ones; one whose work was planned again is no failure any more.
    """
    found: defaultdict[tuple[str, str], list[Data]] = defaultdict(list)
    by_name = {(policy.metadata.namespace, policy.metadata.name): policy for policy in policies}
    for kind, items in (("policy", list(by_name.values())), ("catalog", list(catalogs))):
        for item in items:
            ready = get_condition(item.status.conditions, ConditionType.READY)
            if ready is not None and ready.status.value == "False":
                since = item.status.reason_since or ready.last_transition_time
                found[kind, ready.reason].append(_failure(item, ready.message, since))
    for job in jobs:
        # A job whose policy the user may not read, or that is gone, is a failure all the same.
        owner = by_name.get((job.metadata.namespace, job.spec.policy_ref.name))
        if job.status.state is not JobState.FAULTY or (
            owner is not None and is_superseded(job, owner.status.quarantined)
        ):
            continue
        # The last failure is what the job was parked for; the condition has words where no attempt was made.
        failed = [attempt for attempt in job.status.attempts if attempt.outcome is not AttemptOutcome.SUCCEEDED]
        ready = get_condition(job.status.conditions, ConditionType.FAILED)
        reason = (failed[-1].reason if failed else "") or (ready.reason if ready is not None else "Unknown")
        message = failed[-1].message if failed else ready.message if ready is not None else ""
        found["job", reason].append(_failure(job, message, job.status.finished_at))
    words = {"policy": policy_words(), "job": job_words(), "catalog": CATALOG_WORDS}
    rows = []
    for (kind, reason), failures in found.items():
        meaning = meaning_of(words[kind], reason)
        shown = sorted(failures, key=lambda item: (item["since"] or "", item["namespace"], item["name"]))
        rows.append(
            {
                "kind": kind,
                "reason": reason,
                "count": len(failures),
                "says": _NAMES.fill(meaning.says),
                "do": _NAMES.fill(meaning.do),
                "items": shown[:MOST_FAILURES],
            }
        )
    return sorted(rows, key=lambda row: (-row["count"], row["kind"], row["reason"]))


_NAMES: Final = Names("NAMESPACE")
"""One advice for all objects that are listed under it."""


def _failure(item: CompactionPolicy | CatalogCompaction | CompactionJob, message: str, since: datetime | None) -> Data:
    meta = item.metadata
    return {"namespace": meta.namespace, "name": meta.name, "message": message, "since": time_text(since)}
