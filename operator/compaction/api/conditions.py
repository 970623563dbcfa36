"""Conditions as in metav1, and what kstatus makes of them (docs/design/api-conventions.md#conditions).

Ready is always present; Reconciling and Stalled are abnormal-true and present only while they are True. Helpers are
pure: they take the conditions, return new ones, and get the time passed in. Order is kept and `lastTransitionTime`
moves only when a status changes, so an unchanged state compares equal and needs no write.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Message, Timestamp, to_timestamp
from compaction.api.enums import ConditionStatus, ConditionType
from compaction.api.text.printing import INT64_MAX


class Condition(ApiModel):
    """One observation about the object, as metav1.Condition defines it."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    """Type of the condition in CamelCase: Ready, Reconciling, Stalled; on jobs also Complete and Failed."""
    status: ConditionStatus
    """Status of the condition: True, False or Unknown."""
    observed_generation: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0
    """Generation of the spec (metadata.generation) that this condition was computed from."""
    last_transition_time: Timestamp
    """Time at which the status of this condition last changed."""
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=64, pattern="^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$")
    ]
    """Reason for the status as one CamelCase word, stable enough for alerts."""
    message: Message = ""
    """Message for a person: what is going on and, where something is wrong, what to do."""


Conditions = tuple[Condition, ...]


def get_condition(conditions: Iterable[Condition], condition_type: str) -> Condition | None:
    """The condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == condition_type), None)


def is_true(conditions: Iterable[Condition], condition_type: str) -> bool:
    """True when the condition is present with status True."""
    found = get_condition(conditions, condition_type)
    return found is not None and found.status is ConditionStatus.TRUE


def set_condition(
    conditions: Iterable[Condition],
    *,
    type: str,
    status: bool | ConditionStatus,
    reason: str,
    message: str = "",
    observed_generation: int,
    now: datetime,
) -> Conditions:
    """The conditions with this one in place; `lastTransitionTime` becomes `now` only when the status changes."""
    if isinstance(status, bool):
        status = ConditionStatus.TRUE if status else ConditionStatus.FALSE
    old = tuple(conditions)
    before = get_condition(old, type)
    moment = to_timestamp(now) if before is None or before.status is not status else before.last_transition_time
    after = Condition(
        type=str(type),
        status=status,
        observed_generation=observed_generation,
        last_transition_time=moment,
        reason=str(reason),
        message=message,
    )
    if before is None:
        return (*old, after)
    return tuple(after if item.type == type else item for item in old)


def remove_condition(conditions: Iterable[Condition], condition_type: str) -> Conditions:
    """The conditions without that one."""
    return tuple(condition for condition in conditions if condition.type != condition_type)


def set_ready(
    conditions: Iterable[Condition], *, reason: str, message: str = "", observed_generation: int, now: datetime
) -> Conditions:
    """Ready=True, neither Reconciling nor Stalled: kstatus Current."""
    kept = remove_condition(remove_condition(conditions, ConditionType.RECONCILING), ConditionType.STALLED)
    return set_condition(
        kept,
        type=ConditionType.READY,
        status=True,
        reason=reason,
        message=message,
        observed_generation=observed_generation,
        now=now,
    )


def set_reconciling(
    conditions: Iterable[Condition], *, reason: str, message: str = "", observed_generation: int, now: datetime
) -> Conditions:
    """Reconciling=True, Ready=False for the same reason, not Stalled: kstatus InProgress."""
    return _abnormal(
        conditions,
        present=ConditionType.RECONCILING,
        absent=ConditionType.STALLED,
        reason=reason,
        message=message,
        observed_generation=observed_generation,
        now=now,
    )


def set_stalled(
    conditions: Iterable[Condition], *, reason: str, message: str = "", observed_generation: int, now: datetime
) -> Conditions:
    """Stalled=True, Ready=False for the same reason, not Reconciling: kstatus Failed. A user has to act."""
    return _abnormal(
        conditions,
        present=ConditionType.STALLED,
        absent=ConditionType.RECONCILING,
        reason=reason,
        message=message,
        observed_generation=observed_generation,
        now=now,
    )


def set_complete(
    conditions: Iterable[Condition], *, reason: str, message: str = "", observed_generation: int, now: datetime
) -> Conditions:
    """A job that succeeded: Complete=True and Ready=True, not Failed."""
    ready = set_ready(conditions, reason=reason, message=message, observed_generation=observed_generation, now=now)
    return set_condition(
        remove_condition(ready, ConditionType.FAILED),
        type=ConditionType.COMPLETE,
        status=True,
        reason=reason,
        message=message,
        observed_generation=observed_generation,
        now=now,
    )


def set_failed(
    conditions: Iterable[Condition], *, reason: str, message: str = "", observed_generation: int, now: datetime
) -> Conditions:
    """A job that is parked: Failed=True, Stalled=True, Ready=False. `set_reconciling` and `clear_failed` undo it."""
    stalled = set_stalled(conditions, reason=reason, message=message, observed_generation=observed_generation, now=now)
    return set_condition(
        stalled,
        type=ConditionType.FAILED,
        status=True,
        reason=reason,
        message=message,
        observed_generation=observed_generation,
        now=now,
    )


def clear_failed(conditions: Iterable[Condition]) -> Conditions:
    """The conditions of a parked job that became eligible again (its policy's maxAttempts was raised)."""
    return remove_condition(remove_condition(conditions, ConditionType.FAILED), ConditionType.STALLED)


def _abnormal(
    conditions: Iterable[Condition],
    *,
    present: ConditionType,
    absent: ConditionType,
    reason: str,
    message: str,
    observed_generation: int,
    now: datetime,
) -> Conditions:
    """One abnormal-true condition present, the other absent, Ready=False."""
    result = remove_condition(conditions, absent)
    for condition_type, status in ((ConditionType.READY, False), (present, True)):
        result = set_condition(
            result,
            type=condition_type,
            status=status,
            reason=reason,
            message=message,
            observed_generation=observed_generation,
            now=now,
        )
    return result


def reason_since(before: Conditions, after: Conditions, *, known: datetime | None, now: datetime) -> datetime | None:
    """Since when Ready has the reason that it has `after`; its transition time says only since when it has its status.
    `known`: what was known `before`. None without Ready.
    """
    old, ready = get_condition(before, ConditionType.READY), get_condition(after, ConditionType.READY)
    if ready is None:
        return None
    if old is None or (old.status, old.reason) != (ready.status, ready.reason):
        return to_timestamp(now)
    return known or old.last_transition_time
