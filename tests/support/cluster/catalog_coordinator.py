"""One replica that reconciles one catalog in memory: triggers, results of work, what it writes and publishes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus
from compaction.api.catalog.reasons import Finding
from compaction.api.conditions import get_condition
from compaction.catalogs.compaction.observations import (
    Ask,
    CatalogDecision,
    CatalogMemory,
    CatalogSnapshot,
    Delivered,
    Heard,
    LogRead,
    ReadLog,
    Result,
    Saved,
    SaveSnapshot,
    SendMinimum,
)
from compaction.catalogs.compaction.reconcile import reconcile
from compaction.catalogs.compaction.round import ParticipantAnswer, Unanswered
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.model.descriptors import hybrid
from compaction.core.reconcile.observations import Moment
from support.catalogs.rounds import report, timeline
from support.cluster.catalog_manifests import catalog_object

START = 1_750_000_000.0
HISTORY = timeline(*(hybrid(int(START * 1000) - 5_000_000 + n * 1000) for n in range(6)))


@dataclass
class CatalogCoordinator:
    """One replica that reconciles one catalog; what it writes is what it reads the next time."""

    spec: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    status: CatalogCompactionStatus = field(default_factory=CatalogCompactionStatus)
    memory: CatalogMemory = field(default_factory=CatalogMemory)
    seconds: float = 0.0
    identity: str = "operator-0"
    transitions: int = 3
    writes: int = 0
    events: list[str] = field(default_factory=list)
    conflict: bool = False
    least: int = 0

    @property
    def now(self) -> int:
        return hybrid(int((START + self.seconds) * 1000))

    def run(self, *results: Result) -> CatalogDecision:
        document = catalog_object(**self.spec)
        document["metadata"] |= {"uid": "u", "resourceVersion": str(self.writes), "generation": self.generation}
        catalog = CatalogCompaction.from_object(document | {"status": self.status.to_object()})
        moment = Moment(START + self.seconds, self.seconds)
        snapshot = CatalogSnapshot(
            "ns", "orders", moment, catalog, self.identity, self.transitions, results, self.memory
        )
        decision = reconcile(snapshot)
        self.memory = decision.memory
        self.least = next((task.least for task in decision.tasks if isinstance(task, Ask)), self.least)
        if decision.status is not None and not self.conflict:
            self.status = CatalogCompactionStatus.from_object(decision.status.status.to_object())
            self.writes += 1
            self.events += [event.reason for event in decision.status.events]
        return decision

    def heard(
        self,
        *reports: Any,
        unanswered: tuple[Unanswered, ...] = (),
        token: int | None = None,
        unclaimed: Finding | None = None,
    ) -> Heard:
        """Claimed with the least token that was asked for, unless another is given."""
        answers = tuple(ParticipantAnswer(item, self.now, self.now) for item in reports)
        names = {answer.name for answer in answers} | {item.name for item in unanswered}
        return Heard(self.now, frozenset(names), answers, unanswered, token or self.least, unclaimed)

    def idle(self, name: str = "a") -> Any:
        """A report of a participant that needs nothing old."""
        return report(name, self.now, transactions=self.now, clock=self.now)

    def whole_round(self, *reports: Any) -> CatalogDecision:
        """From asking to the end; every cut and every minimum is taken."""
        decision = self.run(self.heard(*(reports or (self.idle(),))))
        while decision.tasks:
            results: list[Result] = []
            for task in decision.tasks:
                match task:
                    case ReadLog():
                        results.append(LogRead(HISTORY, self.now))
                    case SaveSnapshot():
                        results.append(Saved(SnapshotOutcome.SAVED, task.candidate.version, 1000))
                    case SendMinimum():
                        results.append(Delivered(task.minimum))
                    case Ask():
                        return decision
            decision = self.run(*results)
        return decision

    @property
    def ready(self) -> tuple[str, str]:
        found = get_condition(self.status.conditions, "Ready")
        assert found is not None
        return found.status.value, found.reason

    @property
    def present(self) -> set[str]:
        return {condition.type for condition in self.status.conditions} - {"Ready"}


def kinds(decision: CatalogDecision) -> list[str]:
    return [type(task).__name__ for task in decision.tasks]
