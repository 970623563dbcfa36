"""History is cut to the right version and not one further, and whatever needs it is named until it is released."""

from __future__ import annotations

import pytest

from compaction.catalogs.commands.schema_commands import CreateIndex, MakeIndexAvailable, StartBuildingIndex
from support.cluster.by_kubectl import Object
from support.cluster.orders import TABLE, Orders
from support.processes.operators import OperatorFleet

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900)]


def row(catalog: Orders) -> dict[str, str]:
    """What `kubectl get ccat` prints of the object."""
    head, line = catalog.cluster.kubectl("get", "ccat", "orders").splitlines()
    return dict(zip(head.split(), line.split(), strict=False))


def participant(status: Object, name: str) -> Object:
    found: Object
    (found,) = (item for item in status["participants"] if item["name"] == name)
    return found


def test_every_pin_is_named_and_released(operators: OperatorFleet, catalog: Orders) -> None:
    a, b = catalog.participants.values()
    replica = operators.start()
    catalog.apply()
    status = catalog.await_cut(7)
    assert (status["latestVersion"], status["versionsCut"], status["lastCompactedVersion"]) == (8, 6, 7)
    assert (status["coordinator"], status["fencingToken"] > 0) == (replica.identity, True)
    assert status["bytesCut"] > 0
    assert {item["name"]: item["reason"] for item in status["participants"]} == {"a": "Answered", "b": "Answered"}
    catalog.cluster.await_events("Compacted")
    assert catalog.ready()[0] == "True"

    begun = a.act("begin")
    last = catalog.grow(3)
    status = catalog.await_pin("Transaction", "a", earliest=7)
    assert status["requiredTime"]["subject"] == f"transaction {begun}"
    assert status["requiredTime"]["since"]
    assert status["requiredTime"]["value"] == catalog.versions[8]
    shown = row(catalog)
    assert (shown["READY"], shown["REASON"], shown["EARLIEST"], shown["LATEST"]) == ("True", "Transaction", "7", "11")
    assert (shown["PIN"], shown["BY"], shown["CUT"]) == ("Transaction", "a", "6")
    a.act("finish", timestamp=begun)
    catalog.await_cut(last - 1)

    # A replica does not hear of minimums: a restart of it would replay its log from the old one.
    b.act("pause-replication", paused=True)
    catalog.grow(3)
    status = catalog.await_pin("Replay", "b", earliest=last - 1)
    assert status["requiredTime"]["subject"] == f"partition 0 of table {catalog.table_id}"
    b.act("pause-replication", paused=False)
    last = max(catalog.versions)
    catalog.await_cut(last - 1)

    b.act("start-rebalance", zoneId=catalog.zone_id, minimum=catalog.versions[last])
    catalog.grow(3)
    status = catalog.await_pin("Rebalance", "b", earliest=last - 1)
    assert status["requiredTime"]["subject"] == f"zone {catalog.zone_id}"
    assert participant(status, "b")["rebalances"] == 1
    b.act("end-rebalance", zoneId=catalog.zone_id)
    last = max(catalog.versions)
    catalog.await_cut(last - 1)


def test_an_index_that_is_built_keeps_its_history(operators: OperatorFleet, catalog: Orders) -> None:
    """While the catalog says that it is built, and while a participant says so, each without the other."""
    a, _ = catalog.participants.values()
    operators.start()
    catalog.apply()
    catalog.await_cut(7)
    registered = catalog.run(CreateIndex("PUBLIC", "BY_V", TABLE, ("V",))).version
    (index,) = (index for index in catalog.latest.indexes.values() if index.name == "BY_V")
    a.act("start-index-build", indexId=index.id)
    building = catalog.run(StartBuildingIndex(index.id)).version
    process = catalog.await_reason("IndexConstruction", "a", says="BY_V")
    assert (process["subject"], process["outcome"]) == (f"index {index.id}", "Aborted")
    a.act("end-index-build", indexId=index.id)
    catalog.await_reason("IndexConstruction", says=f"is registered in version {registered}")
    catalog.grow(2)
    catalog.await_reason("IndexConstruction", says=f"is building in version {building + 1}")
    a.act("start-index-build", indexId=index.id)
    last = catalog.run(MakeIndexAvailable(index.id)).version
    catalog.until("the index to be known as available", lambda item: item["latestVersion"] == last)
    catalog.await_reason("IndexConstruction", "a")
    assert catalog.history()[0] < registered
    a.act("end-index-build", indexId=index.id)
    catalog.await_cut(last - 1)
