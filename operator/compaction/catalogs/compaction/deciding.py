"""The two decisions of a round, whether to cut and what to propagate, with the checks before each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compaction.api.catalog.reasons import UNDEFINED, Finding, Reason
from compaction.catalogs.compaction.round import (
    ParticipantAnswer,
    Pin,
    Round,
    is_shortest,
    required,
    snapshot_candidate,
    transactions_minimum,
)
from compaction.catalogs.log.port import SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.history import CatalogHistory, trimmed
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Index, IndexStatus, Table, Zone, later, physical
from compaction.catalogs.model.entries import Snapshot
from compaction.catalogs.participants.reports import Cause, PartitionReport

# Checks that the answers of a round count: each finds the first participant, by name, that stands in the way
# (docs/design/catalog-compaction.md#answers).


def unanswered(round: Round) -> Finding | None:
    """A participant that was asked and whose transactions are not known: neither process may go on."""
    failed = sorted(round.unanswered, key=lambda item: item.name)
    if failed:
        first = failed[0]
        more = f" ({len(failed)} participants have no answer)" if len(failed) > 1 else ""
        return Finding(first.reason, f"participant {first.name}: {first.message}{more}", first.name)
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
    names = [answer.name for answer in round.answers]
    name = min(name for name in names if names.count(name) > 1)
    message = f"{names.count(name)} participants answer as {name}: give each a name of its own"
    return Finding(Reason.ANSWER_REFUSED, message, name)


def _clock(answer: ParticipantAnswer, max_skew: int) -> Finding | None:
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


def _readiness(answer: ParticipantAnswer) -> Finding | None:
    report = answer.report
    if report.low_watermark == UNDEFINED:
        message = f"participant {report.name} has no low watermark yet; it has one after its first update interval"
        return Finding(Reason.NO_WATERMARK, message, report.name)
    undefined = [partition for partition in report.partitions if partition.minimum == UNDEFINED]
    if undefined:
        return _undefined(report.name, min(undefined, key=lambda item: (item.table_id, item.partition)), len(undefined))
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


# Conditions on the version to cut to, in order; the first that does not hold ends the attempt
# (docs/design/catalog-compaction.md#checks).

_CONSTRUCTION = (IndexStatus.REGISTERED, IndexStatus.BUILDING)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A cut to `candidate`. `following` is the version after it, active at the required time; `current` the one active
    now, by hybrid timestamp `now` of the coordinator's clock.
    """

    round: Round
    history: CatalogHistory
    candidate: Catalog
    following: Catalog
    current: Catalog
    now: int


def index_construction(attempt: Attempt) -> Finding | None:
    """An index that is being built needs the versions since it was registered.

    It stands in the way while a participant reports that it builds it, and while the version that everything needs
    from the required time on has it under construction. An index whose construction ended in that version is done: its
    building version may become the snapshot, without a further change of the catalog.
    """
    built_by = {
        build.index_id: (answer.name, build.since)
        for answer in reversed(attempt.round.by_name.values())
        for build in answer.report.index_builds
    }
    for index in sorted(attempt.candidate.indexes.values(), key=lambda index: index.id):
        if index.id in built_by:
            name, since = built_by[index.id]
            message = f"participant {name} builds index {index.id} ({index.name}); versions are cut when it has ended"
            return Finding(Reason.INDEX_CONSTRUCTION, message, name, f"index {index.id}", since)
        if index.status in _CONSTRUCTION and _under_construction(attempt.following.indexes.get(index.id)):
            message = (
                f"index {index.id} ({index.name}) of table {index.table_id} is {index.status.name.lower()} in version "
                f"{attempt.candidate.version} and not available in the next one; versions are cut when it is available "
                "or removed"
            )
            return Finding(Reason.INDEX_CONSTRUCTION, message, "", f"index {index.id}")
    return None


def _under_construction(index: Index | None) -> bool:
    return index is not None and index.status in _CONSTRUCTION


def zones(attempt: Attempt) -> Finding | None:
    """Every zone of the expected topology exists. Partitions of a zone whose name is misspelt there would be counted,
    and not be expected where they must be: that is too little to cut by.
    """
    for name in attempt.round.topology.unknown_zones:
        message = (
            f"the topology assigns partitions of zone {name}, which the catalog does not have: correct the name in "
            "topology.assignments, or take the entry out"
        )
        return Finding(Reason.MISSING_ZONE, message, "", f"zone {name}")
    return None


def partitions(attempt: Attempt) -> Finding | None:
    """Every partition of every table of the candidate that exists now is where it must be. Tables, partitions and
    participants beyond that are ignored. A catalog without participants has no holders.
    """
    if attempt.round.topology.alone:
        return None
    held = _held(attempt.round)
    for table in _tables(attempt.candidate):
        if table.id not in attempt.current.tables:
            continue
        found = _table(attempt, table, attempt.candidate.zones[table.zone_id], held)
        if found is not None:
            return found
    return None


Held = dict[tuple[int, int], frozenset[str]]
"""(table id, partition) -> names of the participants that report it."""


def _held(round: Round) -> Held:
    held: dict[tuple[int, int], set[str]] = {}
    for answer in round.by_name.values():
        for partition in answer.report.partitions:
            held.setdefault((partition.table_id, partition.partition), set()).add(answer.name)
    return {place: frozenset(names) for place, names in held.items()}


def _tables(catalog: Catalog) -> Iterator[Table]:
    yield from sorted(catalog.tables.values(), key=lambda table: table.id)


def _table(attempt: Attempt, table: Table, zone: Zone, held: Held) -> Finding | None:
    assigned = attempt.round.topology.assignments.get(zone.id)
    for partition in range(zone.partitions):
        holders = held.get((table.id, partition), frozenset())
        if assigned is None:
            found = _counted(attempt.round, table, zone, partition, holders)
        else:
            names = assigned[partition] if partition < len(assigned) else None
            found = _assigned(attempt.round, table, zone, partition, holders, names)
        if found is not None:
            return found
    return None


def _counted(round: Round, table: Table, zone: Zone, partition: int, holders: frozenset[str]) -> Finding | None:
    wanted = min(zone.replicas, max(1, len(round.topology.asked | round.topology.expected)))
    if len(holders) >= wanted:
        return None
    message = (
        f"partition {partition} of table {table.id} ({table.name}) in zone {zone.id} ({zone.name}) is reported by "
        f"{len(holders)} participants, {wanted} replicas are expected; check the participants that should hold it"
    )
    return Finding(Reason.MISSING_PARTITION, message, "", f"table {table.id} partition {partition}")


def _assigned(
    round: Round, table: Table, zone: Zone, partition: int, holders: frozenset[str], names: frozenset[str] | None
) -> Finding | None:
    place = f"partition {partition} of table {table.id} ({table.name}) in zone {zone.id} ({zone.name})"
    subject = f"table {table.id} partition {partition}"
    if names is None:
        message = f"{place} is assigned to no participant; name its participants in the topology"
        return Finding(Reason.MISSING_ASSIGNMENT, message, "", subject)
    for name in sorted(names - holders):
        if name not in round.by_name:
            message = (
                f"participant {name} holds {place} and was not found when the round began: start it, or assign the "
                "partition to another"
            )
            return Finding(Reason.MISSING_PARTICIPANT, message, name, subject)
        message = f"participant {name} does not report {place}, which it is assigned to; it does when it has started it"
        return Finding(Reason.MISSING_PARTITION, message, name, subject)
    return None


def deleted_tables(attempt: Attempt) -> Finding | None:
    """A table of the candidate that was deleted since: its partitions are not checked, so no reader may still see it,
    at the coordinator's watermark or at that of a participant, which may be behind.
    """
    time, name = attempt.round.lowest_watermark
    watermark = attempt.history.find_active(time)
    for table in _tables(attempt.candidate):
        if table.id in attempt.current.tables:
            continue
        if watermark is None or table.id in watermark.tables:
            owner = f"participant {name}" if name else "the coordinator"
            message = (
                f"table {table.id} ({table.name}) is deleted and can be read at the low watermark of {owner}; versions "
                "are cut when the watermark has passed its deletion"
            )
            return Finding(Reason.DELETED_TABLE_READABLE, message, name, f"table {table.id}")
    return None


CHECKS = (index_construction, zones, partitions, deleted_tables)
"""In this order; the first finding ends the attempt."""


# The two decisions of a round: whether to cut, and what to propagate. Each is made, and ends, without the other
# (docs/design/catalog-compaction.md#decision).


@dataclass(frozen=True, slots=True)
class Cut:
    """Make `candidate` the snapshot: `versions` of them go, those before it; with `trim` also the column sets of tables
    that no retained version uses.
    """

    candidate: Catalog
    versions: int
    trim: bool


@dataclass(frozen=True, slots=True)
class Propagate:
    """Have every partition publish `minimum` after its next checkpoint. Hybrid timestamp."""

    minimum: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """The decision to cut, or why not. `pin` is None while answers are missing: the required time is not known."""

    step: Cut | Finding
    pin: Pin | None


def propagating(round: Round) -> Propagate | Finding:
    """Decide which minimum to propagate, if any. A participant that is not ready, or missing, has no transactions: it
    stands in the way of a cut, not of this; one without an answer may have some.
    """
    found = unanswered(round)
    if found is not None:
        return found
    if round.topology.alone:
        return Finding(Reason.NOTHING_TO_PROPAGATE, "the catalog has no participants that could publish a minimum")
    if not round.answers:
        return Finding(Reason.NO_PARTICIPANTS, "there are no participants to publish a minimum")
    return Propagate(transactions_minimum(round))


def unusable(round: Round) -> Finding | None:
    """Return the reason for which the required time is not known: an answer or a participant is missing, or one is not
    ready.
    """
    return unanswered(round) or absent(round) or unready(round)


def compacting(round: Round, history: CatalogHistory, now: int) -> Compaction:
    """Decide whether to cut. `history` was read, and `now` taken from the coordinator's clock, after the last answer: a
    table that a participant does not hold any more is deleted in it.
    """
    found = unusable(round)
    if found is not None:
        return Compaction(found, None)
    pin = required(round)
    earliest = history.earliest.version
    if is_shortest(history):
        message = f"versions {earliest} to {history.latest.version} are the shortest history there is"
        return Compaction(Finding(Reason.NOTHING_TO_COMPACT, message), pin)
    candidate = snapshot_candidate(history, pin.time)
    current = history.find_active(now)
    following = None if candidate is None else history.find(candidate.version + 1)
    if candidate is None or following is None or current is None:
        return Compaction(pin.finding(), pin)
    attempt = Attempt(round, history, candidate, following, current, now)
    for check in CHECKS:
        found = check(attempt)
        if found is not None:
            return Compaction(found, pin)
    cut = Cut(candidate, candidate.version - earliest, round.trims)
    if round.dry_run:
        message = f"versions {earliest} to {candidate.version - 1} would be cut; dryRun keeps them"
        return Compaction(Finding(Reason.DRY_RUN, message), pin)
    return Compaction(round.unclaimed or cut, pin)


# A cut that was decided is carried out (docs/design/catalog-compaction.md#fencing).


def cut(log: UpdateLog, candidate: Catalog, token: int, *, trim: bool) -> tuple[SnapshotOutcome, Snapshot]:
    """Save the snapshot of `candidate`, with `trim` without the column sets of tables that no retained version uses.
    Returned whatever the outcome. `token`: claimed before anything was asked that decided the cut. Raises the log's
    errors.
    """
    whole = candidate.snapshot()
    snapshot = trimmed(whole) if trim else whole
    return log.save_snapshot(snapshot, token), snapshot
