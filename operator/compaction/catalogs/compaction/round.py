"""What a decision reads: answers of the participants, the expected topology, times of the coordinator
(docs/design/catalog-compaction.md#rounds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from compaction.api.catalog.reasons import Finding, Reason
from compaction.catalogs.model.hybrid import later
from compaction.catalogs.participants.report import Report


@dataclass(frozen=True, slots=True)
class Answer:
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
    """Which participants there must be, and which partitions each must hold.

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
    answers: tuple[Answer, ...]
    unanswered: tuple[Unanswered, ...] = ()
    max_skew: int = 500
    dry_run: bool = False
    unclaimed: Finding | None = None
    trim: bool = False

    @property
    def by_name(self) -> dict[str, Answer]:
        """Answers of the participants that were asked, by name, in the order of the names."""
        return {one.name: one for one in sorted(self.answers, key=lambda one: one.name)}

    @property
    def old_rows_read_by(self) -> str:
        """The first participant, by name, that does not declare that it reads no rows of older column sets."""
        return next((name for name, one in self.by_name.items() if one.report.reads_old_rows), "")

    @property
    def trims(self) -> bool:
        """Whether a cut drops column sets: it is asked for, and no participant may need them."""
        return self.trim and not self.old_rows_read_by

    @property
    def lowest_watermark(self) -> tuple[int, str]:
        """The smallest of all low watermarks, and the participant that reports it, "" for the coordinator's own."""
        reported = [(one.report.low_watermark, one.name) for one in self.answers]
        return min([(self.low_watermark, ""), *reported])

    @property
    def horizon(self) -> int:
        """No participant that joins after the round began has a clock before this."""
        return later(self.started_at, -self.max_skew)
