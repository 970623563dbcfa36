"""A plan that waits for approval, and damaged sources in quarantine, whose siblings are planned."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from compaction.api.base import timestamp_from_epoch, to_timestamp
from compaction.api.enums import PlanApproval, PlanTriggerReason
from compaction.api.job.job import SkippedSource
from compaction.api.names import ANNOTATION_APPROVED_BY, name_stem
from compaction.api.policy.policy import CompactionPolicy, LeftOutStatus, PlannedWork, PlanStatus, QuarantinedSource
from compaction.api.policy.policy_status import MAX_PLANNED_WORK, MAX_QUARANTINED
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.planner import Plan
from compaction.core.reconcile.observations import Moment

# A plan in the policy's status: carried out, or waiting until a user approves exactly this one.
#
# Before the first job of an approved plan is created, the status names all of its jobs. So a coordinator that takes
# over in the middle knows what was approved, although it cannot make the same plan any more: some of its jobs have
# run.

_DIGITS: Final = 10
"""Hexadecimal ones at the end of a planned job's name: `core/planning/planner.py` makes them of all that the job is."""


def with_unmade(plan: PlanStatus, names: Iterable[str]) -> PlanStatus:
    """The plan with the jobs of it that do not exist yet."""
    ends = b"".join(bytes.fromhex(name[-_DIGITS:]) for name in sorted(names))
    return PlanStatus.model_validate({**dict(plan), "unmade": base64.b64encode(ends).decode()})


def unmade(plan: PlanStatus, policy: CompactionPolicy) -> frozenset[str]:
    """The names of the jobs that the status says are still to be created; none when it cannot be read."""
    try:
        ends = base64.b64decode(plan.unmade, validate=True).hex()
    except binascii.Error:
        # Edited from outside: nothing is sought then, and a plan is made from a scan as at any other time.
        return frozenset()
    stem = name_stem(policy.metadata.name)
    return frozenset(f"{stem}-{ends[at : at + _DIGITS]}" for at in range(0, len(ends), _DIGITS))


def is_written(plan: PlanStatus | None, wanted: str) -> bool:
    """Return whether the status says what is to be created for the approved plan `wanted`."""
    return plan is not None and plan.hash == wanted and plan.approval is PlanApproval.APPROVED and bool(plan.unmade)


def is_pending(plan: PlanStatus | None) -> bool:
    """True for a plan that waits for approval."""
    return plan is not None and plan.approval is PlanApproval.PENDING


def carried_out(
    before: PlanStatus | None,
    plan: Plan,
    now: Moment,
    *,
    policy: CompactionPolicy,
    manual: bool,
    reason: PlanTriggerReason,
) -> PlanStatus:
    """The newest plan that had jobs, unless it still waited: then it is void. What was left out is of the newest."""
    if not plan.jobs and before is not None and not is_pending(before):
        return PlanStatus.model_validate({**dict(before), "left_out": _left_out(plan)})
    same = before if before is not None and before.hash == plan.hash else None
    approval: dict[str, Any] = {}
    if manual and plan.jobs:
        known = same is not None and same.approval is PlanApproval.APPROVED
        named, _, by = policy.metadata.annotations.get(ANNOTATION_APPROVED_BY, "").partition("/")
        # What was approved stays readable while it is carried out.
        approval = {
            "approval": PlanApproval.APPROVED,
            "approved_at": same.approved_at if same is not None and known else to_timestamp(now.time),
            "approved_by": same.approved_by if same is not None and known else (by if named == plan.hash else ""),
            "work": work_of(plan),
        }
    return as_shown(
        plan,
        generation=policy.metadata.generation,
        created_at=same.created_at if same is not None else now.time,
        reason=same.reason if same is not None else reason,
        **approval,
    )


def pending(
    before: PlanStatus | None, plan: Plan, now: Moment, *, policy: CompactionPolicy, reason: PlanTriggerReason
) -> PlanStatus:
    """A plan without approval: with its jobs for review, and since when a plan waits."""
    waited = before.waiting_since if before is not None and is_pending(before) else None
    same = before if before is not None and before.hash == plan.hash else None
    return as_shown(
        plan,
        generation=policy.metadata.generation,
        created_at=same.created_at if same is not None else now.time,
        approval=PlanApproval.PENDING,
        waiting_since=waited or now.time,
        reason=same.reason if same is not None else reason,
        work=work_of(plan),
    )


def work_of(plan: Plan) -> tuple[PlannedWork, ...]:
    """The jobs for review, those with the largest gain."""
    largest = sorted(plan.jobs, key=lambda job: (-job.gain_bytes, job.name))[:MAX_PLANNED_WORK]
    return tuple(
        PlannedWork(
            job=job.name,
            target=job.target,
            groups=len(job.groups),
            obsolete=len(job.obsolete),
            cost_bytes=job.cost_bytes,
            gain_bytes=job.gain_bytes,
        )
        for job in largest
    )


def as_shown(plan: Plan, **more: Any) -> PlanStatus:
    """A plan as a status has it."""
    return PlanStatus(
        hash=plan.hash,
        jobs=len(plan.jobs),
        cost_bytes=plan.cost_bytes,
        gain_bytes=plan.gain_bytes,
        left_out=_left_out(plan),
        **more,
    )


def _left_out(plan: Plan) -> tuple[LeftOutStatus, ...]:
    return tuple(
        LeftOutStatus(
            reason=row.reason,
            count=row.count,
            example=row.example,
            due_at=None if row.due is None else timestamp_from_epoch(row.due),
            missing=row.missing,
        )
        for row in plan.left_out
    )


# Damaged sources that are quarantined, so that their siblings can be compacted; and when that ends.
#
# A source is quarantined with the identity of what the worker read. Once a scan of the store finds another one under
# the name (replaced, repaired) or none, the quarantine is over and the source is planned again
# (docs/design/scheduling.md#faulty-jobs).


def quarantined_by_target(quarantined: Iterable[QuarantinedSource]) -> Mapping[str, frozenset[str]]:
    """Names of sources by target, as planning wants them."""
    targets: dict[str, set[str]] = {}
    for entry in quarantined:
        targets.setdefault(entry.target, set()).add(entry.source)
    return {target: frozenset(names) for target, names in targets.items()}


@dataclass(frozen=True, slots=True)
class Release:
    """A value of annotation compaction.dev/release: `<target>/<source>,...`, or `all`. `alone`: a source may be named
    by itself, as no other one has its name (`Kind.immutable_sources`): a target may hold any character.
    """

    value: str
    alone: bool

    def names(self, target: str, source: str) -> bool:
        """Return whether the annotation names the source."""
        named = {part.strip() for part in self.value.split(",")}
        return "all" in named or (self.alone and source in named) or str(PurePosixPath(target) / source) in named

    def unmatched(self, known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """The parts of the value that name none of the `known` sources (target, name)."""
        sources = tuple(known)
        parts = dict.fromkeys(part.strip() for part in self.value.split(","))
        single = (Release(part, self.alone) for part in parts)
        return tuple(part.value for part in single if not any(part.names(target, name) for target, name in sources))

    def of(self, quarantined: Iterable[QuarantinedSource]) -> frozenset[tuple[str, str]]:
        """Return those of the sources (target, name) that the annotation names."""
        if not self.value:
            return frozenset()
        return frozenset((item.target, item.source) for item in quarantined if self.names(item.target, item.source))


NO_RELEASE: Final = Release("", alone=False)


def quarantine_updated(
    before: Sequence[QuarantinedSource],
    *,
    found: Iterable[tuple[str, SkippedSource]],
    reading: ScanResult | None,
    now: Moment,
) -> tuple[QuarantinedSource, ...]:
    """The quarantine after newly `found` damage (target, source) and a scan, newest last; at most `MAX_QUARANTINED`."""
    entries = {(entry.target, entry.source): entry for entry in _still_damaged(before, reading)}
    for target, source in found:
        known = entries.pop((target, source.source), None)
        entries[target, source.source] = QuarantinedSource(
            target=target,
            source=source.source,
            index=source.index,
            offset=source.offset,
            reason=source.reason,
            message=source.message,
            since=known.since if known is not None else now.time,
            identity=source.identity,
        )
    return tuple(entries.values())[-MAX_QUARANTINED:]


def repaired_sources(before: Iterable[QuarantinedSource], reading: ScanResult | None) -> frozenset[tuple[str, str]]:
    """The sources (target, name) whose quarantine a reading ends because they are others than those found damaged; not
    those that are gone.
    """
    if reading is None:
        return frozenset()
    entries = [(entry, reading.identity(entry.target, entry.source)) for entry in before]
    changed = [entry for entry, identity in entries if identity and entry.identity not in ("", identity)]
    return frozenset((entry.target, entry.source) for entry in changed)


def _still_damaged(before: Sequence[QuarantinedSource], reading: ScanResult | None) -> Iterable[QuarantinedSource]:
    """Yield the entries that the reading does not lift. An entry for which the worker gave no identity gets the one
    found by the first reading after it.
    """
    for entry in before:
        looked_at = reading is not None and (entry.target, entry.source) in reading.identities
        if reading is None or not looked_at:
            yield entry
            continue
        identity = reading.identity(entry.target, entry.source)
        if not entry.identity and identity:
            yield entry.model_copy(update={"identity": identity})
        elif identity and identity == entry.identity:
            yield entry
