"""The Events of a reconcile: what happened to the jobs, what was planned, what was quarantined, when a user has to
act."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from compaction.api.conditions import Conditions, get_condition, is_true
from compaction.api.enums import ConditionStatus, ConditionType, JobState
from compaction.api.policy.resource import CompactionPolicyStatus
from compaction.api.text.formatting import format_bytes, format_work, plural
from compaction.api.text.safe import MESSAGE_LIMIT, cut, printable
from compaction.core.planning.planner import Plan
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.planning.quarantine import Release
from compaction.core.reconcile.workers import skew
from compaction.registry import kind_named, kind_of_job

RECOVERED: Final = "Recovered"
"""A policy goes on after a user had to act."""


def of_plan(planned: Plan | None) -> list[Announce]:
    """The Event of a plan whose jobs are created."""
    if planned is None or not planned.jobs:
        return []
    work = format_work(planned.cost_bytes, planned.gain_bytes)
    return [Announce("Planned", f"{plural(len(planned.jobs), 'job')} planned ({planned.hash}): {work}")]


def of_policy(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[Announce]:
    """Events on the policy, of what its status says for the first time: a user has to act, or no longer; sources
    were quarantined; a measure has raised its alarm; workers are of another version.
    """
    events = of_standing(before.conditions, after.conditions)
    known = {(entry.target, entry.source) for entry in before.quarantined}
    for entry in after.quarantined:
        if (entry.target, entry.source) not in known:
            where = f"{entry.target}/{entry.source}"
            events.append(Announce("Quarantined", f"{where} is quarantined: {entry.message}", warning=True))
    events += _of_measures(before, after)
    events += skew.announced(before.conditions, after.conditions)
    return events


def of_release(release: Release, policy: CompactionPolicyStatus, steps: Iterable[JobStep]) -> list[Announce]:
    """The Event for a new value of annotation compaction.dev/release that names what is not quarantined."""
    sources = {(one.target, one.source) for one in policy.quarantined}
    sources |= {(step.target, skipped.source) for step in steps for skipped in step.status.skipped}
    strangers = release.unmatched(sources)
    if not strangers:
        return []
    named = printable(cut(", ".join(repr(one) for one in strangers), MESSAGE_LIMIT))
    how = "TARGET/SOURCE, a source alone, or all" if release.alone else "TARGET/SOURCE, or all"
    message = f"no quarantined source is named {named}: see status.quarantined; write {how}"
    return [Announce("ReleaseIgnored", message, warning=True)]


def of_standing(before: Conditions, after: Conditions) -> list[Announce]:
    """One Event when a user has to act, when it is for another cause, and when it is over."""
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


def _of_measures(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[Announce]:
    """One Event when a measure with an alarm is no longer 0; that it grows or shrinks is none."""
    if after.debt is None or after.store is None:
        return []
    events = []
    for measure in kind_named(after.store).measures:
        count = int(after.debt.measure(measure.name))
        was = before.debt.measure(measure.name) if before.debt is not None else 0
        if measure.alarm is not None and count and not was:
            found = plural(count, measure.alarm.noun, measure.alarm.nouns)
            events.append(Announce(measure.alarm.reason, f"{found} {measure.alarm.message}", warning=True))
    return events


def of_jobs(steps: Iterable[JobStep]) -> list[Announce]:
    """Events of the steps, each on its job. One for a job that goes well: docs/design/invariants.md, 6."""
    events = [event for step in steps for event in step.events]
    events += [_succeeded(step) for step in steps if step.finished_now and step.state is JobState.SUCCEEDED]
    return events


def _succeeded(step: JobStep) -> Announce:
    receipt = step.status.receipt
    what = "nothing was left to do"
    if receipt is not None:
        freed = format_bytes(receipt.bytes_reclaimed)
        done = kind_of_job(step.view.job.spec.kind).did(receipt)
        what = f"{done} with token {receipt.token}, {freed} reclaimed"
    return Announce("Succeeded", what, job=step.view.identity)
