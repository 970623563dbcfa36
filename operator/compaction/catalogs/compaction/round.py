"""A round as plain data: answers, topology and times, and the version and the time that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from compaction.api.catalog.catalog_spec import PartitionAssignment, TopologySpec
from compaction.api.catalog.reasons import PINS, UNDEFINED, Finding, Reason
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.manager.history import START, CatalogHistory, recovered
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import MINIMUM, Zone, hybrid, later, physical
from compaction.catalogs.participants.reports import Cause, Report

# The input of a decision: answers of the participants, the expected topology, times of the coordinator
# (docs/design/catalog-compaction.md#rounds).


@dataclass(frozen=True, slots=True)
class ParticipantAnswer:
    """A report, dated by the coordinator's clock: the participant wrote it between the two hybrid timestamps."""

    report: Report
    asked_at: int
    received_at: int

    @property
    def name(self) -> str:
        return self.report.name


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A participant that was asked and has no answer that counts. `reason`: NO_ANSWER, ANSWER_LATE, ANSWER_REFUSED."""

    name: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Topology:
    """The participants that must exist, and the partitions that each must hold.

    `asked`: those that were found when the round began, and were asked. `expected`: names that must be among them.
    `least`: how many must be found. `assignments`: for each zone id the participants of each of its partitions, None
    for a partition whose participants are not known; a zone that is absent has each partition wherever it is reported,
    on as many participants as the zone has replicas. `unknown_zones`: names with assignments that no zone has.
    """

    asked: frozenset[str]
    expected: frozenset[str] = frozenset()
    least: int = 1
    assignments: Mapping[int, tuple[frozenset[str] | None, ...]] = field(default_factory=lambda: MappingProxyType({}))
    unknown_zones: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """The catalog has no participants, and is to have none: the coordinator's low watermark alone decides."""
        return not (self.least or self.asked or self.expected or self.assignments)


@dataclass(frozen=True, slots=True)
class Round:
    """Everything that was learned in one round, frozen. Times are hybrid timestamps of the coordinator's clock.

    `started_at`: when the topology was frozen. `low_watermark`: the coordinator's own, at the trigger. `max_skew`:
    milliseconds by which clocks may differ. `unclaimed`: why the log gave no fencing token when the round began.
    `trim`: whether column sets without a reader may go.
    """

    started_at: int
    low_watermark: int
    topology: Topology
    answers: tuple[ParticipantAnswer, ...]
    unanswered: tuple[Unanswered, ...] = ()
    max_skew: int = 500
    dry_run: bool = False
    unclaimed: Finding | None = None
    trim: bool = False

    @property
    def by_name(self) -> dict[str, ParticipantAnswer]:
        """Answers of the participants that were asked, by name, in the order of the names."""
        return {answer.name: answer for answer in sorted(self.answers, key=lambda answer: answer.name)}

    @property
    def old_rows_read_by(self) -> str:
        """The first participant, by name, that does not declare that it reads no rows of older column sets."""
        return next((name for name, item in self.by_name.items() if item.report.reads_old_rows), "")

    @property
    def trims(self) -> bool:
        """Return whether a cut drops column sets: it is asked for, and no participant may need them."""
        return self.trim and not self.old_rows_read_by

    @property
    def lowest_watermark(self) -> tuple[int, str]:
        """The smallest of all low watermarks, and the participant that reports it, "" for the coordinator's own."""
        reported = [(answer.report.low_watermark, answer.name) for answer in self.answers]
        return min([(self.low_watermark, ""), *reported])

    @property
    def horizon(self) -> int:
        """No participant that joins after the round began has a clock before this."""
        return later(self.started_at, -self.max_skew)


# The version to cut a history to (docs/design/catalog-compaction.md#version).


def history_of(events: Iterable[LogEvent]) -> CatalogHistory:
    """The versions that a recovered log leads to, without version 0, which it does not hold; START for an empty log.

    Raises InapplicableEntryError when events contradict themselves.
    """
    versions = [item for item in recovered(events) if item.version]
    return CatalogHistory(versions) if versions else START


def is_shortest(history: CatalogHistory) -> bool:
    """Return whether no time at all allows another cut: the last version and the one before it always stay."""
    return history.latest.version - 1 <= history.earliest.version


def snapshot_candidate(history: CatalogHistory, required: int) -> Catalog | None:
    """The version to make the snapshot when the catalog is needed from `required` on: the one before the version active
    then. None when that is not later than the earliest: nothing would be cut.
    """
    active = history.find_active(required)
    candidate = None if active is None else history.find(active.version - 1)
    return candidate if candidate is not None and candidate.version > history.earliest.version else None


# From which time on the catalog is needed, and who needs it (docs/design/catalog-compaction.md#required-time).

_PLACE: Final = attrgetter("minimum", "table_id", "partition")
_RANK: Final = {reason: place for place, reason in enumerate(PINS)}
_REASON_OF: Final = {
    Cause.LOW_WATERMARK: Reason.LOW_WATERMARK,
    Cause.PARTITION: Reason.REPLAY,
    Cause.REBALANCE: Reason.REBALANCE,
}


@dataclass(frozen=True, slots=True)
class Pin:
    """The need for the catalog from `time` on: the participant that has it, and the reason. `participant` is empty for
    the coordinator's own watermark.

    `since`: hybrid timestamp from which the need exists, UNDEFINED when the report does not say.
    """

    time: int
    reason: Reason
    participant: str = ""
    subject: str = ""
    since: int = UNDEFINED

    def finding(self) -> Finding:
        """Return the reason for which nothing was cut although there are versions to cut."""
        who = f"participant {self.participant}: " if self.participant else "the low watermark of the coordinator: "
        return Finding(self.reason, who + _WORDS[self.reason].format(self.subject), self.participant, self.subject)


_WORDS: Final = {
    Reason.LOW_WATERMARK: "readers may use the catalog from the watermark on; versions are cut as it moves",
    Reason.TRANSACTION: "{} is active and uses an old version; versions are cut when it has ended",
    Reason.REPLAY: "{} has published no later minimum; versions are cut after its next checkpoint",
    Reason.REBALANCE: "{} is rebalanced; versions are cut when its partitions have moved",
}


def required(round: Round) -> Pin:
    """The smallest of all times: nothing that a participant reports is left out, whatever minimum it computed itself.

    Of equal times the one that a user can act upon is named: a transaction before a replay, a rebalance, a watermark.
    """
    pins = [Pin(round.low_watermark, Reason.LOW_WATERMARK)]
    for answer in round.by_name.values():
        pins.extend(_pins(answer.report))
    return min(pins, key=lambda pin: (pin.time, _RANK[pin.reason], pin.participant, pin.subject))


def transactions_minimum(round: Round) -> int:
    """The time from which on read-write transactions need the catalog, to be published by every partition.

    A participant that joined after the round began is not asked; what it begins, it begins after the horizon.
    """
    return min(round.horizon, *(answer.report.transactions for answer in round.by_name.values()))


def _pins(report: Report) -> Iterator[Pin]:
    yield Pin(report.low_watermark, Reason.LOW_WATERMARK, report.name)
    if report.cause is not Cause.NOT_READY:
        yield Pin(report.minimum, _REASON_OF[report.cause], report.name, report.subject)
    # Without a transaction this is the participant's clock, which is past every watermark.
    subject = "a transaction" if report.oldest_transaction == UNDEFINED else f"transaction {report.oldest_transaction}"
    yield Pin(report.transactions, Reason.TRANSACTION, report.name, subject, report.oldest_transaction)
    if report.partitions:  # there may be thousands: only the one that counts becomes a pin
        first = min(report.partitions, key=_PLACE)
        place = f"partition {first.partition} of table {first.table_id}"
        yield Pin(first.minimum, Reason.REPLAY, report.name, place, report.checkpoint)
    for move in report.rebalances:
        yield Pin(move.minimum, Reason.REBALANCE, report.name, f"zone {move.zone_id}", move.since)


# The topology of a round from the spec: assignments name zones, decisions know their ids
# (docs/design/catalog-compaction.md#rounds).


def topology_of(spec: TopologySpec, asked: frozenset[str]) -> Topology:
    """Return the topology that is known before the log is read."""
    return Topology(asked, frozenset(spec.participants), spec.min_participants)


def with_assignments(topology: Topology, spec: TopologySpec, history: CatalogHistory) -> Topology:
    """The declared assignments by id of the zone. A name counts for every zone that has, or had, it in the history: a
    zone that was renamed is not unassigned in the versions before, and one that was dropped is not unknown.
    """
    zones: dict[int, Zone] = {}
    names: dict[int, set[str]] = {}
    seen: object = None
    for version in history:
        if version.zones is seen:  # shared with the version before, as most are
            continue
        seen = version.zones
        for zone in version.zones.values():
            zones[zone.id] = zone
            names.setdefault(zone.id, set()).add(zone.name)
    assignments = {}
    for id, zone in zones.items():
        declared = [assignment for assignment in spec.assignments if assignment.zone in names[id]]
        if declared:
            assignments[id] = _placed(declared, zone)
    known = set().union(*names.values())
    unknown = dict.fromkeys(assignment.zone for assignment in spec.assignments if assignment.zone not in known)
    return replace(topology, assignments=assignments, unknown_zones=tuple(unknown))


def _placed(declared: Iterable[PartitionAssignment], zone: Zone) -> tuple[frozenset[str] | None, ...]:
    """The participants of each partition; several entries for one partition add up."""
    placed: list[frozenset[str] | None] = [None] * zone.partitions
    for item in declared:
        for partition in range(item.first_partition, min(item.last_partition + 1, zone.partitions)):
            placed[partition] = (placed[partition] or frozenset()) | frozenset(item.participants)
    return tuple(placed)


# The coordinator's low watermark: readers may use the catalog from there on
# (docs/design/catalog-compaction.md#the-watermark-of-the-coordinator).


@dataclass(frozen=True, slots=True)
class WatermarkRule:
    """Milliseconds: how often the watermark moves, how long versions stay readable, how far clocks may differ."""

    update_interval: int
    data_availability: int
    max_skew: int


def moved(watermark: int, rule: WatermarkRule, now: int) -> int:
    """The watermark at `now` (milliseconds since the epoch): it only grows, also when the clock jumps back."""
    age = rule.data_availability + rule.max_skew
    candidate = hybrid(now - age) if now > age else MINIMUM
    return max(watermark, candidate)


def due_in(watermark: int, rule: WatermarkRule, now: int) -> int:
    """Milliseconds until the watermark may move by an interval, 0 when it may now; one is due at once without one."""
    if watermark == UNDEFINED:
        return 0
    reached = physical(watermark) + rule.data_availability + rule.max_skew
    return max(0, reached + rule.update_interval - now)
