"""The Events of a reconcile: what happened to the jobs, what was planned, what was set aside, who has to act."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from compaction.api.conditions import Conditions, get_condition, is_true
from compaction.api.enums import ConditionStatus, ConditionType, JobState
from compaction.api.formatting import format_bytes, format_merge, format_work, plural
from compaction.api.policy import CompactionPolicyStatus
from compaction.api.text import MESSAGE_LIMIT, cut, printable
from compaction.planning.planner import Plan
from compaction.reconcile import quarantine, skew
from compaction.reconcile.actions import Announce
from compaction.reconcile.steps import JobStep

RECOVERED: Final = "Recovered"
"""A policy goes on after somebody had to act."""


def of_plan(planned: Plan | None) -> list[Announce]:
    """The Event of a plan whose jobs are created."""
    if planned is None or not planned.jobs:
        return []
    work = format_work(planned.cost_bytes, planned.gain_bytes)
    return [Announce("Planned", f"{plural(len(planned.jobs), 'job')} planned ({planned.hash}): {work}")]


def of_policy(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[Announce]:
    """Events on the policy, of what its status says for the first time: somebody has to act, or not any more; sources
    were set aside; live entries are missing; workers are of another version.
    """
    events = of_standing(before.conditions, after.conditions)
    known = {(entry.log, entry.segment) for entry in before.quarantined}
    for entry in after.quarantined:
        if (entry.log, entry.segment) not in known:
            where = f"{entry.log}/{entry.segment}"
            events.append(Announce("Quarantined", f"{where} is set aside: {entry.message}", warning=True))
    events += _of_missing(before, after)
    events += skew.announced(before.conditions, after.conditions)
    return events


def of_release(value: str, policy: CompactionPolicyStatus, steps: Iterable[JobStep]) -> list[Announce]:
    """The Event for a new value of annotation compaction.dev/release that names what is not quarantined."""
    sources = {(one.log, one.segment) for one in policy.quarantined}
    sources |= {(step.log, source.segment) for step in steps for source in step.status.skipped}
    strangers = quarantine.unmatched(value, sources)
    if not strangers:
        return []
    named = printable(cut(", ".join(repr(one) for one in strangers), MESSAGE_LIMIT))
    message = f"no quarantined source is named {named}: see status.quarantined; write LOG/SEGMENT, a block's id, or all"
    return [Announce("ReleaseIgnored", message, warning=True)]


def of_standing(before: Conditions, after: Conditions) -> list[Announce]:
    """One Event when somebody has to act, when it is for another cause, and when it is over."""
    old, new = get_condition(before, ConditionType.READY), get_condition(after, ConditionType.READY)
    if new is None:
        return []
    asked = old is not None and old.status is ConditionStatus.FALSE
    if new.status is ConditionStatus.FALSE:
        if asked and old is not None and old.reason == new.reason:
            return []
        return [Announce(new.reason, new.message, warning=is_true(after, ConditionType.STALLED))]
    if asked and old is not None and new.status is ConditionStatus.TRUE:
        return [Announce(RECOVERED, f"{old.reason} is over; {new.reason}: {new.message}")]
    return []


def _of_missing(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[Announce]:
    """One Event when the first live entry is missing: what waits in a write-ahead log changes all the time."""
    if not after.missing_live_entries or before.missing_live_entries:
        return []
    missing = plural(after.missing_live_entries, "live entry", "live entries")
    message = f"{missing} in no segment of their logs: in a write-ahead log, or lost"
    return [Announce("LiveEntriesMissing", message, warning=True)]


def of_jobs(steps: Iterable[JobStep]) -> list[Announce]:
    """Events of the steps, each on its job. One for a job that goes well: writes per job are bounded (DESIGN §7.6)."""
    events = [event for step in steps for event in step.events]
    events += [_succeeded(step) for step in steps if step.finished_now and step.state is JobState.SUCCEEDED]
    return events


def _succeeded(step: JobStep) -> Announce:
    receipt = step.status.receipt
    what = "nothing was left to do"
    if receipt is not None:
        freed = format_bytes(receipt.bytes_reclaimed)
        done = f"{plural(receipt.groups_committed, 'group')} committed"
        if step.view.job.spec.sources.blocks is not None:
            done = format_merge(len(receipt.sources), len(receipt.outputs))
        what = f"{done} with token {receipt.token}, {freed} reclaimed"
    return Announce("Succeeded", what, job=step.view.identity)
