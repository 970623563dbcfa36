"""A CatalogCompaction from its creation to its deletion: suspended, run dry, changed; its log away and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.commands.schema_commands import CreateIndex, MakeIndexAvailable, StartBuildingIndex
from compaction.local.programs.binaries import Binaries
from support.catalogs.etcd_members import Members, etcd_members
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import Cluster, Object, User, condition, make_user
from support.cluster.orders import TABLE, Orders, orders
from support.faults.proxies import Network, TcpProxy
from support.processes.operators import ACCOUNT, OperatorFleet

pytestmark = pytest.mark.apiserver


def test_suspended_run_dry_changed_and_deleted(
    operators: OperatorFleet, catalog: Orders, control_plane: Any, tmp_path: Path
) -> None:
    catalog.await_ready(past=catalog.versions[8])
    replica = operators.start()
    catalog.apply(suspend=True)
    catalog.await_condition("True", "Suspended")
    assert "round" not in catalog.status()

    catalog.patch(suspend=False, dryRun=True)
    process = catalog.await_reason("DryRun", says="versions 1 to 6 would be cut")
    assert process["outcome"] == "Skipped"
    status = catalog.status()
    assert (status["propagation"]["reason"], status["versionsCut"]) == ("DryRun", 0)
    assert status.get("lastCompactedVersion") is None
    assert catalog.history() == list(range(1, 9))

    # A participant that is expected and not there: the spec says so, and nothing is cut until it is corrected.
    catalog.patch(dryRun=False, topology={"participants": ["a", "b", "c"]})
    process = catalog.await_reason("MissingParticipant", "c")
    assert "take it out of the topology" in process["message"]
    catalog.await_condition("False", "MissingParticipant")
    assert condition(catalog.cluster.catalog(), "Stalled")["status"] == "True"
    assert catalog.history()[0] == 1
    catalog.patch(topology={"participants": ["a", "b"], "minParticipants": 3})
    catalog.await_reason("NoParticipants")
    assigned = {"zone": "FAST", "participants": ["a", "c"]}
    catalog.patch(topology={"participants": ["a", "b"], "minParticipants": 2, "assignments": [assigned]})
    catalog.await_reason("MissingParticipant", "c", says="partition 0")
    assert catalog.history()[0] == 1
    catalog.patch(topology={"assignments": [assigned | {"participants": ["a", "b"]}]})
    status = catalog.await_cut(7)
    assert status["observedGeneration"] == catalog.cluster.catalog()["metadata"]["generation"]
    catalog.cluster.await_events("MissingParticipant", "Compacted")

    # Rounds come once a day now, and when a user asks for one.
    editor = make_user(control_plane, catalog.cluster.namespace, tmp_path, role="compaction-editor")
    catalog.patch(interval="24h", lowWatermark={"updateInterval": "24h", "dataAvailability": "1s"})
    assert "policy" not in editor.prints("scan", "ccat/orders", "--wait", "--timeout", "1m")
    assert (catalog.status()["scan"]["outcome"], catalog.history()[0]) == ("Accepted", 7)
    assert editor.prints("run-now", "ccat/orders", "--wait", "--timeout", "1m").count("catalog orders: ") == 2
    assert catalog.status()["history"][-1]["trigger"] == "Requested"
    what_another_spec_would_do(catalog, editor, tmp_path)
    catalog.patch(interval="500ms", lowWatermark={"updateInterval": "500ms", "dataAvailability": "1s"})

    catalog.patch(suspend=True)
    catalog.await_condition("True", "Suspended")
    catalog.grow(2)
    asked = catalog.status()["round"]
    catalog.cluster.delete("ccat/orders")
    catalog.apply(suspend=True)
    catalog.await_condition("True", "Suspended")
    assert catalog.status().get("versionsCut", 0) == 0, "another object of this name begins anew"
    assert catalog.history() == [7, 8, 9, 10]
    assert asked["stage"] == "Idle"
    catalog.patch(suspend=False)
    catalog.await_cut(9)
    catalog.cluster.delete("ccat/orders")
    catalog.grow(2)
    assert replica.process.poll() is None
    assert "Traceback" not in replica.output


def what_another_spec_would_do(catalog: Orders, editor: User, directory: Path) -> None:
    """Asked by files, with the rights of who may edit: nothing is claimed, cut or propagated for it."""
    document = catalog.cluster.catalog()
    document = {key: document[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "orders"}}
    file = directory / "orders.yaml"

    def ask(**changes: Any) -> Object:
        file.write_text(json.dumps(document | {"spec": document["spec"] | changes}))
        (found,) = json.loads(editor.prints("plan", "-f", str(file), "-o", "json"))
        return dict(found)

    before = catalog.status()
    found = ask(topology={"participants": ["a", "z"]})
    after = catalog.status()
    assert (found["participants"], found["answered"], found["generation"]) == (2, 2, before["observedGeneration"])
    assert found["inForce"]["reason"] == before["compaction"]["reason"]
    assert (found["proposed"]["reason"], found["proposed"]["participant"]) == ("MissingParticipant", "z")
    kept = ("fencingToken", "round", "versionsCut", "propagatedMinimum", "history")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    file.write_text(json.dumps(document | {"spec": document["spec"] | {"catalog": {"endpoints": ["http://e:2379"]}}}))
    assert "OtherStore: " in editor.refused("plan", "-f", str(file))
    catalog.patch(suspend=True)
    catalog.await_condition("True", "Suspended")
    found = ask(suspend=False)
    assert (found["outcome"], found["inForce"]["latestVersion"]) == ("Accepted", max(catalog.versions))
    catalog.patch(suspend=False)
    eventually(lambda: catalog.ready()[1] != "Suspended", "the catalog to go on")


def test_a_log_that_is_away_is_named_and_history_is_cut_when_it_is_back(
    operators: OperatorFleet, catalog: Orders, etcd: Members
) -> None:
    (member,) = etcd.members
    operators.start()
    with TcpProxy((member.endpoint.host, member.endpoint.port)) as proxy:
        catalog.apply(endpoints=[f"http://127.0.0.1:{proxy.port}"], timeouts={"log": "1s"})
        catalog.await_cut(7)
        for state in (Network.REFUSING, Network.BLACK_HOLE):
            proxy.set(state)
            # Both of one status: beside a load a participant answers late now and then, which says nothing of the log.
            status = catalog.until(
                "the outage to be named, and minimums to be propagated without the log",
                lambda item: (
                    (item["compaction"]["reason"], item["propagation"]["reason"]) == ("LogUnavailable", "Propagated")
                ),
            )
            assert status["compaction"]["outcome"] == "Failed"
            assert f"127.0.0.1:{proxy.port}" in status["compaction"]["message"]
            catalog.await_condition("False", "LogUnavailable")
            last = catalog.grow(2)
            proxy.set(Network.UP)
            catalog.await_cut(last - 1)
            catalog.await_condition("True", "NothingToCompact")

    catalog.apply()
    member.kill()
    catalog.until("the dead etcd to be named", lambda item: item["compaction"]["reason"] == "LogUnavailable")
    etcd.start(member)
    last = catalog.grow(2)
    catalog.await_cut(last - 1)
    eventually(lambda: catalog.ready()[0] == "True", "the catalog to be well again")


def test_members_of_etcd_restart_in_an_orderly_way_under_the_operator(
    operators: OperatorFleet, cluster: Cluster, binaries: Binaries, tmp_path: Path
) -> None:
    """A rolling restart, as an upgrade of etcd makes it: rounds go on with the members that are there, and the process
    that changes the catalog follows it all the time.
    """
    with (
        etcd_members(tmp_path / "three", binaries.etcd, 3) as three,
        orders(cluster, three.settings(), tmp_path / "participants", "a", "b") as catalog,
    ):
        catalog.create()
        catalog.write_token()
        catalog.allow_secrets(ACCOUNT)
        operators.start()
        catalog.apply(endpoints=[str(member.endpoint) for member in three.members])
        catalog.await_cut(7)
        for member in three.members:
            member.stop(patience=PATIENCE_SECONDS)
            last = catalog.grow(2)
            catalog.await_cut(last - 1)
            three.start(member)
        last = catalog.grow(2)
        catalog.await_cut(last - 1)
        assert catalog.ready()[0] == "True"


# History is cut to the right version and not one further, and whatever needs it is named until it is released.


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
