"""Explains in sentences why a catalog is as it is: a pure function of the object, the Leases and the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from compaction.api.base import format_timestamp
from compaction.api.catalog.catalog import (
    ANSWERED,
    CatalogCompaction,
    CatalogCompactionStatus,
    CatalogReason,
    ParticipantStatus,
    ProcessStatus,
    RequiredTime,
)
from compaction.api.catalog.reasons import Process, Reason, Stage
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType
from compaction.api.text.printing import format_bytes, plural
from compaction.catalogs.participants.reports import Cause
from compaction.core.explain.explanation import Explanation, ExplanationBuilder, coordination, tell_coordinator
from compaction.core.meaning import Meaning, Names, meaning_of
from compaction.leases.record import Lease

# The words for how rounds of a catalog end, and for its conditions.

_EDIT: Final = "kubectl edit ccat {catalog} {n}"
_AGAIN: Final = "The next round asks every participant again."
_UNREACHED: Final = "Nothing is cut or propagated until it answers, because nothing else knows what it needs. " + _AGAIN
_READ: Final = "Nothing is cut until the log can be read; the next round reads it again."

CATALOG_WORDS: Final[Mapping[str, Meaning]] = {
    CatalogReason.STARTING: Meaning(
        "No round with the current spec has ended.",
        "The round that runs asks every participant, reads the log, and decides.",
        "If this persists, check that an operator runs: kubectl get lease -A | grep compaction-coordinator",
    ),
    CatalogReason.SUSPENDING: Meaning(
        "The catalog is being suspended: the round that ran when spec.suspend became true still runs.",
        "The catalog is Suspended when both processes of the round have ended; no other round begins.",
    ),
    CatalogReason.HELD: Meaning(
        "The operator is on hold: it plans, starts and deletes nothing, for no policy and no catalog.",
        "The round that runs ends; no other one begins until the hold is released.",
        "Release it, when what it was for is over: kubectl compaction release",
    ),
    CatalogReason.SUSPENDED: Meaning(
        "The catalog is suspended (spec.suspend is true).",
        "No round begins, and the history grows.",
        "Resume it: kubectl compaction resume ccat/{catalog} {n}",
    ),
    CatalogReason.INVALID_SPEC: Meaning(
        "The object was stored under an older schema and is no longer valid.",
        "No round begins until it is corrected.",
        f"Correct the field that the message names: {_EDIT}",
    ),
    Reason.COMPACTED: Meaning(
        "Versions that no participant needs were cut.",
        "The next round cuts what is not needed by then.",
    ),
    Reason.PROPAGATED: Meaning(
        "Every participant has the minimum of all transactions.",
        "Partitions publish it after their next checkpoint, and later rounds may cut more.",
    ),
    Reason.NOTHING_TO_PROPAGATE: Meaning(
        "The catalog has no participants that could publish a minimum.",
        "History is cut by the low watermark alone.",
    ),
    Reason.NOTHING_TO_COMPACT: Meaning(
        "The history is as short as it can be: the last version and the one before it always stay.",
        "The next change of the catalog makes it longer; a round after that cuts it.",
    ),
    Reason.DRY_RUN: Meaning(
        "spec.dryRun is true: the round decided, and cut and propagated nothing.",
        "Each round decides again; the message says what it would do.",
        'Let it cut: kubectl patch ccat {catalog} {n} --type=merge -p \'{{"spec":{{"dryRun":false}}}}\'',
    ),
    Reason.NOT_NEWER: Meaning(
        "The log has a later snapshot than the one that was decided.",
        "Another coordinator, or a cut by hand, was faster; the next round reads what it left.",
    ),
    Reason.LOW_WATERMARK: Meaning(
        "Readers may use every version from the low watermark on.",
        "The watermark moves each spec.lowWatermark.updateInterval, and versions behind it are cut.",
    ),
    Reason.TRANSACTION: Meaning(
        "An active transaction uses an old version.",
        "The versions are cut in the first round after it has ended.",
        "If it should have ended, commit it or roll it back in the participant that is named.",
    ),
    Reason.REPLAY: Meaning(
        "A partition has published no later minimum: a restart of its participant would replay its log from there.",
        "The versions are cut in the first round after its next checkpoint.",
        "If checkpoints do not come, check the participant that is named: it reports the time of its last one.",
    ),
    Reason.REBALANCE: Meaning(
        "Partitions of a zone move, and their assignments are computed from an older version of it.",
        "The versions are cut in the first round after the partitions have moved.",
    ),
    Reason.NO_PARTICIPANTS: Meaning(
        "Fewer participants were found than spec.topology.minParticipants.",
        "Nothing is cut: a selector that finds no pod must not look like a catalog without users. " + _AGAIN,
        f"Compare the labels of the pods with spec.participants.selector, and start the participants: {_EDIT}",
    ),
    Reason.NO_ANSWER: Meaning(
        "A participant was asked and did not answer.",
        _UNREACHED,
        "Check its process, the network between the operator and it, and its certificate.",
    ),
    Reason.ANSWER_LATE: Meaning(
        "The answer of a participant was not whole within spec.timeouts.answer.",
        _UNREACHED,
        f"Check its load, or raise spec.timeouts.answer: {_EDIT}",
    ),
    Reason.ANSWER_REFUSED: Meaning(
        "The answer of a participant cannot be believed: it refuses the token, or its report breaks a rule.",
        _UNREACHED,
        "Compare the Secret that spec.participants.token names with the one that the participant expects; check the "
        "implementation: compactor catalogs debug conformance URL",
    ),
    Reason.CLOCK_OFF: Meaning(
        "The clock of a participant differs from the coordinator's by more than spec.maxClockSkew.",
        "Its times compare with nothing, so nothing is cut or propagated. " + _AGAIN,
        "Synchronize the clocks of the participant and of the operator's node.",
    ),
    Reason.NO_WATERMARK: Meaning(
        "A participant has started and has no low watermark yet.",
        "Nothing is cut until it has one, after its first update interval.",
    ),
    Reason.UNDEFINED_PARTITION: Meaning(
        "A partition has published no minimum since its participant started.",
        "Nothing is cut until it has: after the next checkpoint of the participant.",
        "If checkpoints do not come, check the participant that is named.",
    ),
    Reason.NOT_READY: Meaning(
        "A participant says that it is not ready.",
        "Nothing is cut until it reports what it needs.",
        "If it should have started by now, read the log of the participant that is named.",
    ),
    Reason.INDEX_CONSTRUCTION: Meaning(
        "An index is built, and its construction needs the versions since it was registered.",
        "The versions are cut in the first round after the index is available or removed.",
        "If no participant builds it any more, drop the index.",
    ),
    Reason.MISSING_PARTICIPANT: Meaning(
        "A participant that spec.topology expects was not found.",
        "Nothing is cut until it is there; what others need is known, and is propagated.",
        f"Start it; if it is gone for good, take it out of spec.topology: {_EDIT}",
    ),
    Reason.MISSING_ZONE: Meaning(
        "spec.topology.assignments names a zone that no retained version of the catalog has.",
        "Nothing is cut until it does not: a zone with a wrong name would go without the check of its partitions.",
        f"Correct the name of the zone, or take the entry out of spec.topology.assignments: {_EDIT}",
    ),
    Reason.MISSING_ASSIGNMENT: Meaning(
        "A partition is assigned to no participant.",
        "Nothing is cut until spec.topology.assignments names its participants.",
        f"Name them: {_EDIT}",
    ),
    Reason.MISSING_PARTITION: Meaning(
        "A partition is not reported by the participants that must hold it.",
        "Nothing is cut until they report it, because a replay of it may need any version.",
        f"Check the participants; if the partition has moved, correct spec.topology.assignments: {_EDIT}",
    ),
    Reason.DELETED_TABLE_READABLE: Meaning(
        "A table was deleted, and readers at the low watermark still see it.",
        "The versions are cut when the watermark has passed its deletion.",
    ),
    Reason.FENCED: Meaning(
        "The log has seen a larger fencing token than that of the round.",
        "Nothing is cut while another coordinator has the log; the next round claims a larger token.",
        "Let one object and one operator compact a log; docs/runbooks/CompactionCatalogFencing.md has the cases.",
    ),
    Reason.LOG_UNAVAILABLE: Meaning(
        "No member of etcd answers, or it ends the requests.",
        _READ + " The minimum of the transactions is propagated meanwhile.",
        f"Check etcd, the network, and spec.catalog.endpoints: {_EDIT}",
    ),
    Reason.LOG_CORRUPT: Meaning(
        "The log holds what does not belong there: a value is missing, damaged, unknown, or of another log.",
        _READ,
        f"Restore the key that the message names from a backup, or correct spec.catalog.prefix: {_EDIT}",
    ),
    Reason.SNAPSHOT_REFUSED: Meaning(
        "The log does not take the snapshot: it is larger than a value may be, or cannot be written.",
        "Nothing is cut until it fits.",
        "Set --max-request-bytes of every etcd member above the size in the message, or drop tables, columns and "
        "indexes that no process needs.",
    ),
    Reason.NO_SPACE: Meaning(
        "etcd has no space left (its alarm NOSPACE): it reads and deletes, and writes nothing.",
        "Nothing is cut until it writes again; what earlier cuts left behind is deleted meanwhile.",
        "Compact the history of etcd (etcdctl compact REVISION), defragment each member (etcdctl defrag), then clear "
        "the alarm (etcdctl alarm disarm); the next round cuts.",
    ),
    Reason.NOT_DELIVERED: Meaning(
        "A participant did not take the minimum.",
        "Its partitions keep the last one that they have; the next round sends the minimum again.",
        "Check the participant that is named.",
    ),
    Reason.SECRET_MISSING: Meaning(
        "A Secret that the log or the participants need, or one of its keys, does not exist.",
        "The next round reads the Secrets again; nothing is cut until they are there.",
        "Create the Secret, add the key (kubectl create secret generic NAME {n} --from-literal=KEY=VALUE), or correct "
        f"the name: {_EDIT}",
    ),
    Reason.PERMISSION_DENIED: Meaning(
        "The operator may not read a Secret or list the participants, or etcd does not let its user use the log.",
        "The next round tries again; nothing is cut until it is allowed.",
        "Grant what the message names: Secrets with manifests/components/catalogs, pods with the role of the operator, "
        "the prefix of the log to the user of etcd.",
    ),
    Reason.PARTICIPANTS_UNKNOWN: Meaning(
        "The API server does not say where the participants are.",
        "The next round asks it again; nothing is cut until it answers.",
    ),
    Reason.INTERNAL_ERROR: Meaning(
        "The coordinator failed in an unexpected way.",
        "The next round tries again.",
        "Report the error that the operator's log has.",
    ),
}

CAUSE_WORDS: Final[Mapping[str, str]] = {
    Cause.LOW_WATERMARK: "its low watermark",
    Cause.PARTITION: "a replay",
    Cause.REBALANCE: "a rebalance",
    Cause.NOT_READY: "it is not ready",
}
"""Why a participant needs the catalog from its minimum on."""


_UNKNOWN: Final = "Unknown"
_WITHOUT: Final = "No round begins until an operator leads; what was cut stays cut, and the history grows."
_FIRST: Final = "The first round follows when an operator watches the namespace."
_SKEW: Final = 100
"""Milliseconds of difference between two clocks that are worth a word."""


def explain_catalog(catalog: CatalogCompaction, leases: Sequence[Lease] | None, now: datetime) -> Explanation:
    """Explain how long the history is and who pins it, how the last round ended, what happens next, what a user can do.

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
    builder.state(*(participant_sentence(builder, participant) for participant in status.participants))
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
    """Say which participant needs the catalog from which time on, and since when."""
    time = format_timestamp(pin.time)
    if pin.reason == Reason.LOW_WATERMARK:
        who = f"participant {pin.participant}" if pin.participant else "the coordinator"
        return f"The catalog is needed from {time} on, {builder.age(pin.time)} ago: the low watermark of {who}."
    since = f", since {format_timestamp(pin.since)} ({builder.age(pin.since)})" if pin.since is not None else ""
    what = f"{pin.subject} of participant {pin.participant}" if pin.subject else f"participant {pin.participant}"
    return f"The catalog is needed from {time} on, {builder.age(pin.time)} ago: {pin.reason}, {what}{since}."


def _explain_process(builder: ExplanationBuilder, process: Process, ended: ProcessStatus | None, ready: str) -> None:
    """Explain how one of the two processes ended. What follows from the reason of Ready stands with the condition."""
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


def participant_sentence(builder: ExplanationBuilder, status: ParticipantStatus) -> str:
    """Say what one participant reported in the last round."""
    if status.reason != ANSWERED:
        meaning = meaning_of(CATALOG_WORDS, status.reason)
        return f"Participant {status.name}: {status.reason}. {status.message or meaning.says}"
    cause = CAUSE_WORDS.get(status.cause, status.cause)
    if status.minimum is not None:
        about = f" of {status.subject}" if status.subject and status.cause != Cause.LOW_WATERMARK else ""
        needs = f"needs the catalog from {format_timestamp(status.minimum)} on, for {cause}{about}"
    else:
        about = f" ({status.subject})" if status.subject else ""
        needs = f"has not said from when on it needs the catalog, because {cause}{about}"
    undefined = f" ({status.undefined_partitions} without a published minimum)" if status.undefined_partitions else ""
    skew = status.clock_skew_milliseconds
    details = [
        f"oldest transaction {builder.age(status.oldest_transaction)} old" if status.oldest_transaction else "",
        plural(status.partitions, "partition") + undefined,
        f"last checkpoint {builder.age(status.checkpoint)} ago" if status.checkpoint else "",
        plural(status.index_builds, "index build") if status.index_builds else "",
        plural(status.rebalances, "rebalance") if status.rebalances else "",
        f"clock {abs(skew)} ms {'ahead' if skew > 0 else 'behind'}" if abs(skew) >= _SKEW else "",
    ]
    return f"Participant {status.name} {needs}; {', '.join(filter(None, details))}."


def _explain_next(builder: ExplanationBuilder, catalog: CatalogCompaction, leases: Sequence[Lease] | None) -> None:
    """Explain when the next round begins, and what spec.dryRun and spec.suspend do to it."""
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
