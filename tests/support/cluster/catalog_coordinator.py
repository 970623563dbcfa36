"""One replica that reconciles one catalog in memory: triggers, results of work, what it writes and publishes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import Finding, Reason
from compaction.api.conditions import get_condition
from compaction.api.names import ANNOTATION_USED_BY, GROUP
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.compaction.observations import (
    Ask,
    CatalogDecision,
    CatalogMemory,
    CatalogSnapshot,
    CutForecast,
    Delivered,
    Forecast,
    Heard,
    LogRead,
    PreviewRound,
    ReadLog,
    Result,
    Saved,
    SaveSnapshot,
    SendMinimum,
)
from compaction.catalogs.compaction.preview import forecast
from compaction.catalogs.compaction.reconcile import reconcile
from compaction.catalogs.compaction.round import ParticipantAnswer, Unanswered
from compaction.catalogs.errors import CatalogError
from compaction.catalogs.log.port import Recovered, Renewal, SnapshotOutcome, UpdateLog
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from compaction.catalogs.operator.working import Credentials
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.serving.client import ParticipantAddress
from compaction.core.reconcile.observations import Hold, Moment
from compaction.errors import NotFoundError
from compaction.kube.client.transport import Resource
from support.catalogs.memory_log import MemoryUpdateLog
from support.catalogs.rounds import World, report, timeline
from support.cluster.orders import catalog_object

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
    annotations: dict[str, str] = field(default_factory=dict)
    hold: Hold | None = None

    @property
    def now(self) -> int:
        return hybrid(int((START + self.seconds) * 1000))

    def run(self, *results: Result) -> CatalogDecision:
        document = catalog_object(**self.spec)
        document["metadata"] |= {"uid": "u", "resourceVersion": str(self.writes), "generation": self.generation}
        document["metadata"]["annotations"] = {f"{GROUP}/{key}": value for key, value in self.annotations.items()}
        catalog = CatalogCompaction.from_object(document | {"status": self.status.to_object()})
        moment = Moment(START + self.seconds, self.seconds)
        snapshot = CatalogSnapshot(
            "ns", "orders", moment, catalog, self.identity, self.transitions, results, self.memory, self.hold
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

    def propose(self, id: str = "first", **changes: Any) -> list[PreviewRound]:
        """A preview of the spec with these changes is asked for; the work that begins."""
        spec = catalog_object(**self.spec)["spec"] | changes
        self.annotations["preview"] = json.dumps({"id": id, "spec": spec})
        return [task for task in self.run().tasks if isinstance(task, PreviewRound)]

    def forecast(self, task: PreviewRound, *reports: Any) -> Forecast:
        """What the work of the operator finds; a cut is one of 1000 bytes."""
        heard = self.heard(*(reports or (self.idle(),)), token=1)
        columns: list[CutForecast] = []
        for spec, watermark in zip((task.spec, task.proposed), task.watermarks, strict=True):
            column, cut = forecast(spec, watermark, heard, HISTORY, self.now)
            columns.append(replace(column, bytes=0 if cut is None else 1000))
        return Forecast(len(heard.asked), len(heard.answers), columns[0], columns[1])

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


# Logs in memory and participants by name, as the controller of catalogs works with them.


@dataclass
class KeptLog:
    """A log that stays open when one of its users closes it."""

    log: MemoryUpdateLog
    failure: CatalogError | None = None
    writer: str = "a coordinator"
    swept: int = 0

    def time(self) -> None:
        """It has no clock."""

    def sweep(self) -> None:
        self.swept += 1

    def recover(self) -> Recovered:
        if self.failure is not None:
            raise self.failure
        return self.log.recover()

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        return self.log.append(update, timestamp)

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        return self.log.save_snapshot(snapshot, token)

    def claim(self, least: int, *, begins: bool = True) -> int:
        if self.failure is not None:
            raise self.failure
        return self.log.claim(least)

    def watch(self, *_: Any) -> Any:
        raise AssertionError("a coordinator reads the log, and watches nothing")

    def close(self) -> None:
        """Another use opens it again."""


@dataclass
class MemoryLogs:
    """Implements `catalogs.operator.working.Logs` for one catalog."""

    kept: KeptLog = field(default_factory=lambda: KeptLog(MemoryUpdateLog()))
    opened_with: list[Credentials] = field(default_factory=list)
    world: World = field(default_factory=World)

    def open(self, spec: CatalogCompactionSpec, credentials: Credentials) -> UpdateLog:
        self.opened_with.append(credentials)
        return self.kept

    def run(self, *commands: CatalogCommand) -> None:
        """One more version."""
        found = self.world.run(*commands)
        version = self.world.catalog.version
        assert self.kept.append(VersionedUpdate(version, 5, found.entries), hybrid(version * 1000))


@dataclass
class NamedParticipants:
    """Implements `catalogs.operator.working.Participants` in this process; `silent` ones do not answer."""

    clock: Callable[[], int]
    known: dict[str, ReferenceParticipant] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    sent: list[tuple[int, int]] = field(default_factory=list)

    async def ask(
        self, spec: CatalogCompactionSpec, addresses: Sequence[ParticipantAddress], credentials: Credentials
    ) -> tuple[tuple[ParticipantAnswer, ...], tuple[Unanswered, ...]]:
        asked = [address.name for address in addresses]
        answers = [
            ParticipantAnswer(replace(self.known[name].report(), name=name), self.clock(), self.clock())
            for name in asked
            if name not in self.silent
        ]
        silent = [Unanswered(name, Reason.NO_ANSWER, "refused") for name in asked if name in self.silent]
        return tuple(answers), tuple(silent)

    async def send(
        self,
        spec: CatalogCompactionSpec,
        addresses: Sequence[ParticipantAddress],
        credentials: Credentials,
        minimum: int,
        token: int,
    ) -> tuple[tuple[str, str], ...]:
        self.sent.append((minimum, token))
        for address in addresses:
            if address.name not in self.silent:
                self.known[address.name].store_minimum(minimum)
        return tuple((address.name, "refused") for address in addresses if address.name in self.silent)


@dataclass
class ObjectsOf:
    """An API client that has these Secrets (values by name) and pods; `failure` is raised instead."""

    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pods: Sequence[Mapping[str, Any]] = ()
    failure: Exception | None = None
    asked: list[str | None] = field(default_factory=list)

    async def get(self, resource: Resource, name: str, *, namespace: str) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        if name not in self.secrets:
            raise NotFoundError(f"{resource.plural} {name} in {namespace}", status=404, reason="NotFound")
        metadata = {"name": name, "namespace": namespace, "annotations": {ANNOTATION_USED_BY: "CatalogCompaction/*"}}
        return {"metadata": metadata, "data": dict(self.secrets[name])}

    async def list(self, resource: Resource, *, namespace: str, labels: str | None = None) -> SimpleNamespace:
        if self.failure is not None:
            raise self.failure
        self.asked.append(labels)
        return SimpleNamespace(items=tuple(self.pods))


def pod(name: str, address: str = "10.0.0.1", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    status = {"phase": phase} | ({"podIP": address} if address else {})
    return {"metadata": {"name": name, **metadata}, "status": status}
