"""Everything that the status of a catalog can say is said by rounds that were really decided: no field, column,
condition or event is promised and never produced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, CatalogReason
from compaction.api.catalog.reasons import UNDEFINED, Outcome, Reason, Trigger
from compaction.api.enums import ConditionType
from compaction.catalogs.compaction.observations import Broken, Delivered, LogRead, RoundWork, Saved
from compaction.catalogs.compaction.round import Unanswered
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.reports import Cause, IndexBuild, PartitionReport, Rebalance, Report, Role
from support.catalogs.rounds import report
from support.cluster.by_kubectl import Cluster, columns_of
from support.cluster.catalog_coordinator import HISTORY, START, CatalogCoordinator
from support.cluster.orders import catalog_object

BEGUN = hybrid(int(START * 1000) - 9_000_000)
OLD = HISTORY.catalog(2).activation_time


def busy(one: CatalogCoordinator) -> Report:
    """A participant with something of everything: a transaction pins the history."""
    held = [PartitionReport(9, 0, Role.PRIMARY, OLD), PartitionReport(9, 1, Role.REPLICA, UNDEFINED)]
    return replace(
        report(
            "b",
            OLD,
            held,
            cause=Cause.PARTITION,
            transactions=OLD,
            oldest_transaction=BEGUN,
            clock=one.now - (200 << 16),
        ),
        subject="partition 0 of table 9",
        index_builds=(IndexBuild(11, BEGUN),),
        rebalances=(Rebalance(7, OLD, BEGUN),),
        checkpoint=BEGUN,
        low_watermark=OLD,
    )


def pinned_after_a_cut() -> tuple[CatalogCoordinator, list[CatalogCompactionStatus]]:
    """Every status on the way to a cut, and to a transaction that pins the history."""
    one, seen = CatalogCoordinator(), []

    def note() -> None:
        seen.append(one.memory.status or one.status)

    one.run()
    note()
    one.run(one.heard(one.idle()))
    note()
    one.run(LogRead(HISTORY, one.now))
    one.run(Saved(SnapshotOutcome.SAVED, 2, 700), Delivered(one.now))
    note()
    one.seconds += 61
    one.run()
    one.run(one.heard(one.idle(), busy(one)))
    note()
    one.run(LogRead(HISTORY, one.now), Delivered(OLD))
    note()
    one.seconds += 61
    one.run()
    ready = replace(busy(one), partitions=(PartitionReport(9, 0, Role.PRIMARY, OLD),))
    one.run(one.heard(one.idle(), ready))
    one.run(LogRead(HISTORY, one.now), Delivered(OLD))
    note()
    return one, seen


def failing(one: CatalogCoordinator) -> list[CatalogCompactionStatus]:
    """A participant stays silent, then a Secret is missing; both end, and the catalog is suspended."""
    seen = []
    for _ in range(2):
        one.seconds += 61
        one.run()
        one.run(one.heard(one.idle(), unanswered=(Unanswered("b", Reason.NO_ANSWER, "connection refused"),)))
        one.run(LogRead(HISTORY, one.now))
        seen.append(one.status)
    for _ in range(2):
        one.seconds += 61
        one.run()
        one.run(Broken(RoundWork.ASK, Reason.SECRET_MISSING, "Secret etcd is not there"))
        seen.append(one.status)
    one.seconds += 61
    one.run()
    one.whole_round()
    one.spec, one.generation = {"suspend": True}, 2
    one.run()
    seen.append(one.status)
    return seen


def asked(one: CatalogCoordinator) -> list[CatalogCompactionStatus]:
    """A user asks for a round, for one that cuts nothing, and what another spec would do."""
    one.spec, one.generation = {}, 3
    one.annotations |= {"run-now": "today", "scan": "today"}
    one.run()
    one.whole_round()
    seen = [one.status]
    (task,) = one.propose(topology={"participants": ["z"]})
    one.run(one.forecast(task))
    seen.append(one.status)
    (task,) = one.propose("second", dryRun=True)
    ready = replace(busy(one), partitions=(PartitionReport(9, 0, Role.PRIMARY, OLD),))
    one.run(one.forecast(task, one.idle(), ready))
    return [*seen, one.status]


def fields_said(value: Any) -> Iterator[tuple[str, str]]:
    """(model, field) of everything that differs from its default, however deep."""
    if isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            found = getattr(value, name)
            if info.is_required() or found != info.get_default(call_default_factory=True):
                yield type(value).__name__, name
            yield from fields_said(found)
    elif isinstance(value, tuple):
        for item in value:
            yield from fields_said(item)


def fields_of(model: type[BaseModel]) -> set[tuple[str, str]]:
    """(model, field) of a model and of all models in it, but for what Kubernetes defines."""
    found: set[tuple[str, str]] = set()
    for name, info in model.model_fields.items():
        found.add((model.__name__, name))
        for inner in models_in(info.annotation):
            if inner.__module__.startswith("compaction.api.catalog"):
                found |= fields_of(inner)
    return found


def models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from models_in(argument)


def test_every_field_of_the_status_is_said() -> None:
    one, seen = pinned_after_a_cut()
    said = {pair for status in (*seen, *failing(one), *asked(one)) for pair in fields_said(status)}
    # Events for a sink are added where a status is written (test_controller.py).
    assert fields_of(CatalogCompactionStatus) - said == {("CatalogCompactionStatus", "events")}


def test_every_condition_is_there_at_its_time() -> None:
    one, seen = pinned_after_a_cut()
    seen += failing(one)
    present = {(condition.type, condition.status.value) for status in seen for condition in status.conditions}
    ready = {(ConditionType.READY.value, status) for status in ("True", "False", "Unknown")}
    assert present == ready | {("Reconciling", "True"), ("Stalled", "True")}
    reasons = {condition.reason for status in seen for condition in status.conditions}
    assert {CatalogReason.STARTING, CatalogReason.SUSPENDED, Reason.TRANSACTION, Reason.NO_ANSWER} <= reasons


def test_events_tell_cuts_and_what_needs_a_user_and_its_end() -> None:
    one, _ = pinned_after_a_cut()
    failing(one)
    assert one.events == ["Compacted", "NoAnswer", "SecretMissing", "Recovered", "Compacted"]


def test_every_outcome_and_trigger_reaches_the_status() -> None:
    one, seen = pinned_after_a_cut()
    seen += failing(one)
    ended = [process for status in seen for process in (status.compaction, status.propagation) if process is not None]
    assert {process.outcome for process in ended} == set(Outcome)
    assert {status.round.trigger for status in seen if status.round is not None} <= set(Trigger)


@pytest.mark.apiserver
def test_every_column_has_a_value_on_a_real_api_server(control_plane: Any, namespace: str) -> None:
    cluster = Cluster(control_plane, namespace)
    cluster.apply(catalog_object("orders"))
    one, _ = pinned_after_a_cut()
    patch = json.dumps({"status": one.status.to_object()})
    cluster.kubectl("patch", "ccat/orders", "--type=merge", "--subresource=status", "-p", patch)
    (row,) = columns_of(cluster.kubectl("get", "ccat", "-o", "wide"))
    names = {column.name.upper() for column in CatalogCompaction.INFO.columns}
    assert set(row) == {"NAME", *names}
    assert {name: cell for name, cell in row.items() if cell in ("", "<none>", "<unknown>", "<invalid>")} == {}
    assert (row["READY"], row["REASON"], row["PIN"], row["BY"]) == ("True", "Transaction", "Transaction", "b")
    assert (row["EARLIEST"], row["LATEST"], row["CUT"]) == ("1", "6", "1")
    assert (row["COORDINATOR"], row["PROPAGATION"]) == ("operator-0", "Propagated")
