"""Whether the answers of a round count: each check finds the first participant, by name, that stands in the way
(docs/design/catalog-compaction.md#answers).
"""

from __future__ import annotations

from compaction.api.catalog.reasons import UNDEFINED, Finding, Reason
from compaction.catalogs.compaction.round import Answer, Round
from compaction.catalogs.model.hybrid import later, physical
from compaction.catalogs.participants.report import Cause, PartitionReport


def unanswered(round: Round) -> Finding | None:
    """A participant that was asked and whose transactions are not known: neither process may go on."""
    failed = sorted(round.unanswered, key=lambda one: one.name)
    if failed:
        one = failed[0]
        more = f" ({len(failed)} participants have no answer)" if len(failed) > 1 else ""
        return Finding(one.reason, f"participant {one.name}: {one.message}{more}", one.name)
    answered = round.by_name
    if len(answered) < len(round.answers):
        return _same_name(round)
    for name in sorted(round.topology.asked):
        if name not in answered:
            message = f"participant {name} was asked and has not answered; check its process and its network"
            return Finding(Reason.NO_ANSWER, message, name)
    for answer in answered.values():
        found = _clock(answer, round.max_skew)
        if found is not None:
            return found
    return None


def absent(round: Round) -> Finding | None:
    """A participant that is expected and was not found when the round began, or too few of them."""
    topology = round.topology
    for name in sorted(topology.expected - topology.asked):
        message = f"participant {name} is expected and was not found: start it, or take it out of the topology"
        return Finding(Reason.MISSING_PARTICIPANT, message, name)
    if len(topology.asked) < topology.least:
        message = (
            f"{len(topology.asked)} participants were found, at least {topology.least} are expected: check how they "
            "are selected, and that their processes run"
        )
        return Finding(Reason.NO_PARTICIPANTS, message)
    return None


def unready(round: Round) -> Finding | None:
    """A participant that cannot say yet what it needs: it has no watermark, or a partition has no minimum."""
    for answer in round.by_name.values():
        found = _readiness(answer)
        if found is not None:
            return found
    return None


def _same_name(round: Round) -> Finding:
    names = [one.name for one in round.answers]
    name = min(one for one in names if names.count(one) > 1)
    message = f"{names.count(name)} participants answer as {name}: give each a name of its own"
    return Finding(Reason.ANSWER_REFUSED, message, name)


def _clock(answer: Answer, max_skew: int) -> Finding | None:
    """Times of a clock that is off compare with nothing. The answer was written between question and receipt."""
    clock = answer.report.clock
    early, late = later(answer.asked_at, -max_skew), later(answer.received_at, max_skew)
    if early <= clock <= late:
        return None
    ahead = physical(clock) - physical(answer.received_at)
    direction = "ahead of" if ahead > 0 else "behind"
    message = (
        f"participant {answer.name}: its clock is {abs(ahead)} ms {direction} the coordinator's, {max_skew} ms are "
        "allowed; synchronize the clocks"
    )
    return Finding(Reason.CLOCK_OFF, message, answer.name)


def _readiness(answer: Answer) -> Finding | None:
    report = answer.report
    if report.low_watermark == UNDEFINED:
        message = f"participant {report.name} has no low watermark yet; it has one after its first update interval"
        return Finding(Reason.NO_WATERMARK, message, report.name)
    undefined = [one for one in report.partitions if one.minimum == UNDEFINED]
    if undefined:
        return _undefined(report.name, min(undefined, key=lambda one: (one.table_id, one.partition)), len(undefined))
    if report.cause is Cause.NOT_READY:
        about = f": {report.subject}" if report.subject else ""
        message = f"participant {report.name} is not ready{about}; it reports what it needs when it has started"
        return Finding(Reason.NOT_READY, message, report.name, report.subject)
    return None


def _undefined(name: str, first: PartitionReport, count: int) -> Finding:
    others = f" ({count} partitions in all)" if count > 1 else ""
    message = (
        f"participant {name}: partition {first.partition} of table {first.table_id} has published no minimum since "
        f"the process started{others}; it does after its next checkpoint"
    )
    return Finding(Reason.UNDEFINED_PARTITION, message, name, f"table {first.table_id} partition {first.partition}")
