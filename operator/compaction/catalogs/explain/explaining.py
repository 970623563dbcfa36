"""Why a catalog is as it is, in sentences. A pure function of the object, the Leases and the time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from compaction.api.catalog.processes import Stage
from compaction.api.catalog.reasons import Process, Reason
from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.catalog.status import (
    ANSWERED,
    CatalogCompactionStatus,
    ParticipantStatus,
    ProcessStatus,
    RequiredTime,
)
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType
from compaction.api.text.formatting import format_bytes, plural
from compaction.api.text.times import format_timestamp
from compaction.catalogs.explain.words import CATALOG_WORDS, CAUSE_WORDS
from compaction.catalogs.participants.report import Cause
from compaction.core.explain.coordination import coordination
from compaction.core.explain.coordinator import tell_coordinator
from compaction.core.explain.explanation import Explanation, ExplanationBuilder
from compaction.core.meaning import Names, meaning_of
from compaction.leases.record import Lease

_UNKNOWN: Final = "Unknown"
_WITHOUT: Final = "No round begins until an operator leads; what was cut stays cut, and the history grows."
_FIRST: Final = "The first round follows when an operator watches the namespace."
_SKEW: Final = 100
"""Milliseconds of difference between two clocks that are worth a word."""


def explain_catalog(catalog: CatalogCompaction, leases: Sequence[Lease] | None, now: datetime) -> Explanation:
    """How long the history is and who pins it, how the last round ended, what happens next, what a user can do.

    Args:
        leases: those of the object's namespace; None when they may not be read.
    """
    meta, status = catalog.metadata, catalog.status
    builder = ExplanationBuilder(Names(meta.namespace, catalog=meta.name), now)
    ready = get_condition(status.conditions, ConditionType.READY)
    _explain_history(builder, status)
    seen = status.observed_generation >= 0
    tell_coordinator(builder, leases, now, namespace=meta.namespace, seen=seen, without=_WITHOUT, first=_FIRST)
    if ready is not None:
        meaning = meaning_of(CATALOG_WORDS, ready.reason)
        since = builder.age(status.reason_since or ready.last_transition_time)
        builder.state(builder.once(f"{ready.reason}, for {since}", meaning.says, ready.message))
        builder.consequences(meaning)
    if 0 <= status.observed_generation < meta.generation:
        builder.state("The spec has changed since; the operator has not observed the change yet.")
    for process, ended in ((Process.COMPACTION, status.compaction), (Process.PROPAGATION, status.propagation)):
        _explain_process(builder, process, ended, ready.reason if ready is not None else "")
    _explain_round(builder, status)
    builder.state(*(participant_sentence(builder, one) for one in status.participants))
    _explain_next(builder, catalog, leases)
    if meta.is_deleting:
        builder.state("It is being deleted: no round begins, the log is not changed.")
    return builder.told(f"CatalogCompaction {meta.namespace}/{meta.name}: {ready.reason if ready else _UNKNOWN}")


def _explain_history(builder: ExplanationBuilder, status: CatalogCompactionStatus) -> None:
    earliest, latest = status.earliest_version, status.latest_version
    if earliest is None or latest is None:
        builder.debt("Unknown: no round has read the log yet.")
    elif not latest:
        builder.debt("None: the log is empty.")
    elif not status.debt_versions:
        builder.debt(f"None: versions {earliest} to {latest} are the shortest history there is.")
    else:
        builder.debt(
            f"Versions {earliest} to {latest} are kept: {plural(status.debt_versions, 'version')} beyond the two that "
            "always stay."
        )
    if status.required_time is not None:
        builder.debt(pin_sentence(builder, status.required_time))
    elif status.compaction is not None:
        builder.debt("From when on the catalog is needed is not known: a participant is missing, or has not said it.")
    if status.versions_cut:
        last = (
            f"; the last cut was {builder.age(status.last_compaction_time)} ago" if status.last_compaction_time else ""
        )
        cut = f"{plural(status.versions_cut, 'version')}, {format_bytes(status.bytes_cut)} of updates,"
        builder.debt(f"{cut} were cut since the object was created{last}.")


def pin_sentence(builder: ExplanationBuilder, pin: RequiredTime) -> str:
    """Who needs the catalog from when on, and since when."""
    time = format_timestamp(pin.time)
    if pin.reason == Reason.LOW_WATERMARK:
        who = f"participant {pin.participant}" if pin.participant else "the coordinator"
        return f"The catalog is needed from {time} on, {builder.age(pin.time)} ago: the low watermark of {who}."
    since = f", since {format_timestamp(pin.since)} ({builder.age(pin.since)})" if pin.since is not None else ""
    what = f"{pin.subject} of participant {pin.participant}" if pin.subject else f"participant {pin.participant}"
    return f"The catalog is needed from {time} on, {builder.age(pin.time)} ago: {pin.reason}, {what}{since}."


def _explain_process(builder: ExplanationBuilder, process: Process, ended: ProcessStatus | None, ready: str) -> None:
    """How one of the two processes ended. What follows from the reason of Ready stands with the condition."""
    if ended is None:
        builder.state(f"{process}: it has not ended yet.")
        return
    meaning = meaning_of(CATALOG_WORDS, ended.reason)
    since = f", for {builder.age(ended.since)}" if ended.since is not None else ""
    said = f"{process}: {ended.outcome}, {ended.reason}{since}, {builder.age(ended.finished_at)} ago"
    builder.state(builder.once(said, meaning.says, ended.message))
    if ended.reason != ready:
        builder.consequences(meaning)


def _explain_round(builder: ExplanationBuilder, status: CatalogCompactionStatus) -> None:
    round = status.round
    if round is None:
        return
    begun = f"begun {builder.age(round.started_at)} ago by {round.trigger}"
    answers = f"{round.answered} of {plural(round.participants, 'participant')} answered"
    match round.stage:
        case Stage.ASKING:
            builder.state(f"A round runs, {begun}: participants are asked.")
        case Stage.ACTING:
            builder.state(f"A round runs, {begun}: {answers}.")
        case Stage.IDLE:
            builder.state(f"The last round was {begun}: {answers}.")
    if status.coordinator:
        builder.state(f"It was run by {status.coordinator} with fencing token {status.fencing_token}.")
    if status.low_watermark is not None:
        builder.state(f"The low watermark of the coordinator is {format_timestamp(status.low_watermark.time)}.")
    if status.propagated_minimum is not None:
        builder.state(f"The minimum that was propagated last is {format_timestamp(status.propagated_minimum.time)}.")


def participant_sentence(builder: ExplanationBuilder, one: ParticipantStatus) -> str:
    """What one participant reported in the last round."""
    if one.reason != ANSWERED:
        meaning = meaning_of(CATALOG_WORDS, one.reason)
        return f"Participant {one.name}: {one.reason}. {one.message or meaning.says}"
    cause = CAUSE_WORDS.get(one.cause, one.cause)
    if one.minimum is not None:
        about = f" of {one.subject}" if one.subject and one.cause != Cause.LOW_WATERMARK else ""
        needs = f"needs the catalog from {format_timestamp(one.minimum)} on, for {cause}{about}"
    else:
        about = f" ({one.subject})" if one.subject else ""
        needs = f"has not said from when on it needs the catalog, because {cause}{about}"
    details = [
        f"oldest transaction {builder.age(one.oldest_transaction)} old" if one.oldest_transaction else "",
        _partitions(one),
        f"last checkpoint {builder.age(one.checkpoint)} ago" if one.checkpoint else "",
        plural(one.index_builds, "index build") if one.index_builds else "",
        plural(one.rebalances, "rebalance") if one.rebalances else "",
        _clock(one.clock_skew_milliseconds),
    ]
    return f"Participant {one.name} {needs}; {', '.join(filter(None, details))}."


def _partitions(one: ParticipantStatus) -> str:
    undefined = f" ({one.undefined_partitions} without a published minimum)" if one.undefined_partitions else ""
    return plural(one.partitions, "partition") + undefined


def _clock(skew: int) -> str:
    if abs(skew) < _SKEW:
        return ""
    return f"clock {abs(skew)} ms {'ahead' if skew > 0 else 'behind'}"


def _explain_next(builder: ExplanationBuilder, catalog: CatalogCompaction, leases: Sequence[Lease] | None) -> None:
    """When the next round begins; what spec.dryRun and spec.suspend do to it."""
    spec, moment = catalog.spec, catalog.status.next_run_time
    if spec.suspend:
        builder.next("spec.suspend is true: no round begins.")
        return
    coordinator = coordination(leases, catalog.metadata.namespace, builder.now, complete=False)
    if moment is not None and not coordinator.is_missing:
        builder.next(
            f"The next round begins {builder.until(moment)}, at {format_timestamp(moment)} "
            f"(spec.interval: {spec.interval.text}), earlier when the spec changes or another coordinator begins."
        )
    if spec.dry_run:
        builder.next("spec.dryRun is true: rounds decide everything, and cut and propagate nothing.")
