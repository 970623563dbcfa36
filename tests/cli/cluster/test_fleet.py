"""What is asked of a fleet, and the rows, approvals and Events of one: a real API server, users with the roles we ship.

Statuses are written by the test, so that every answer is exact; tests/e2e has the operator in it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import pytest

from compaction.api.names import (
    ANNOTATION_APPROVE,
    ANNOTATION_APPROVED_BY,
    ANNOTATION_HOLD_DRAIN,
    ANNOTATION_HOLD_REASON,
    ANNOTATION_OUTSIDE_WINDOW,
    ANNOTATION_RUN_NOW,
    ANNOTATION_SCAN,
    HOLD_LEASE,
)
from support.clocks import PATIENCE_SECONDS
from support.cluster.by_kubectl import RBAC, Cluster, User, ago, bind, columns_of, coordinator_lease, make, write_status
from support.cluster.explained import condition
from support.cluster.manifests import job_object, policy_object
from support.cluster.orders import catalog_object

pytestmark = pytest.mark.apiserver


def annotations_of(document: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = document["metadata"].get("annotations", {})
    return found


def labelled(document: dict[str, Any], **labels: str) -> dict[str, Any]:
    document["metadata"]["labels"] = labels
    return document


@pytest.fixture
def three(cluster: Cluster) -> Cluster:
    """Two policies and a catalog; one policy and the catalog are of one team."""
    make(cluster, labelled(policy_object("logs"), team="blue"))
    make(cluster, policy_object("others"))
    make(cluster, labelled(catalog_object("orders"), team="blue"))
    return cluster


@contextmanager
def beside(act: Callable[[], None]) -> Iterator[None]:
    """What happens while a command waits."""
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def when(holds: Callable[[], Any]) -> Any:
    for _ in range(1200):
        if found := holds():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that within a minute")


def answer(outcome: str, reason: str, message: str) -> dict[str, Any]:
    return {"handledAt": ago(0), "outcome": outcome, "reason": reason, "message": message}


def test_names_a_selector_or_all_and_what_is_missing_holds_nothing_up(three: Cluster, editor: User) -> None:
    said = editor.run("run-now", "nowhere", "logs", "ccat/orders")
    assert said.returncode == 1
    assert said.stdout == "policy logs: run requested\ncatalog orders: run requested\n"
    assert 'no CompactionPolicy or CatalogCompaction "nowhere" in namespace' in said.stderr
    values = {annotations_of(found)[ANNOTATION_RUN_NOW] for found in (three.policy(), three.catalog())}
    assert len(values) == 1, "one request, one value"
    assert ANNOTATION_RUN_NOW not in annotations_of(three.policy("others"))

    assert editor.prints("scan", "-l", "team=blue") == "policy logs: scan requested\ncatalog orders: scan requested\n"
    assert editor.prints("scan", "--all").count("scan requested") == 3
    assert ANNOTATION_SCAN in annotations_of(three.policy("others"))
    assert "no policy and no catalog matches" in editor.refused("scan", "-l", "team=red")
    for wrong in ((), ("logs", "--all"), ("-l", "team=blue", "--all"), ("logs", "-A")):
        editor.refused("run-now", *wrong, code=2)
    make(three, policy_object("orders"))
    assert "orders is a policy and a catalog: give cpol/orders or ccat/orders" in editor.refused("run-now", "orders")


def test_outside_of_the_windows_is_said_by_the_same_value_and_taken_back(three: Cluster, editor: User) -> None:
    editor.prints("run-now", "logs", "--outside-window")
    found = annotations_of(three.policy())
    assert found[ANNOTATION_OUTSIDE_WINDOW] == found[ANNOTATION_RUN_NOW]
    editor.prints("run-now", "logs")
    assert ANNOTATION_OUTSIDE_WINDOW not in annotations_of(three.policy())


def test_run_now_waits_for_the_end_of_all_and_says_what_came_of_each(three: Cluster, editor: User) -> None:
    for name in ("logs", "others"):
        write_status(three, f"cpol/{name}", {"succeeded": 4, "bytesReclaimed": 1 << 20})

    def operator() -> None:
        value = when(lambda: annotations_of(three.catalog()).get(ANNOTATION_RUN_NOW))
        handled = {"lastHandledRunNow": value}
        refused = handled | {"runNow": answer("Refused", "OutsideWindow", "the next one opens at noon")}
        write_status(three, "cpol/others", refused)
        accepted = handled | {"runNow": answer("Accepted", "Planned", "plan 4d5e is carried out")}
        write_status(three, "cpol/logs", accepted | {"active": 1})
        write_status(three, "ccat/orders", handled | {"runNow": answer("Accepted", "Compacted", "4 versions are cut")})
        time.sleep(1.5)
        write_status(three, "cpol/logs", {"active": 0, "succeeded": 6, "bytesReclaimed": 3 << 20})

    with beside(operator):
        said = editor.run("run-now", "--all", "--wait", "--timeout", "60s")
    assert said.returncode == 1
    assert "policy logs: 2 jobs have succeeded, 2Mi reclaimed\n" in said.stdout
    assert "catalog orders: Compacted: 4 versions are cut\n" in said.stdout
    assert "error: policy others: OutsideWindow: the next one opens at noon" in said.stderr


def test_a_wait_gives_up_after_its_time_and_names_what_is_not_done(three: Cluster, editor: User) -> None:
    said = editor.refused("scan", "logs", "--wait", "--timeout", "1s")
    assert "error: policy logs: not done within 1s" in said


def test_a_parked_job_is_no_success(three: Cluster, editor: User) -> None:
    def operator() -> None:
        value = when(lambda: annotations_of(three.policy()).get(ANNOTATION_RUN_NOW))
        accepted = {"lastHandledRunNow": value, "runNow": answer("Accepted", "Planned", "a plan")}
        write_status(three, "cpol/logs", accepted | {"faulty": 1})

    with beside(operator):
        assert "policy logs: 1 job is parked" in editor.refused("run-now", "logs", "--wait", "--timeout", "60s")


def test_suspend_waits_until_nothing_runs_and_resume_undoes_it(three: Cluster, editor: User) -> None:
    write_status(three, "cpol/logs", {"observedGeneration": 1, "active": 2})

    def operator() -> None:
        when(lambda: three.policy()["spec"].get("suspend"))
        when(lambda: three.catalog()["spec"].get("suspend"))
        write_status(three, "cpol/logs", {"observedGeneration": 2, "active": 1})
        suspended = {"observedGeneration": 2, "conditions": [condition("Ready", "Suspended")]}
        write_status(three, "ccat/orders", suspended)
        time.sleep(1.5)
        write_status(three, "cpol/logs", {"active": 0})

    with beside(operator):
        said = editor.prints("suspend", "-l", "team=blue", "--wait", "--timeout", "60s")
    assert said.startswith("policy logs: suspended\ncatalog orders: suspended\n")
    assert {"policy logs: nothing runs", "catalog orders: nothing runs"} <= set(said.splitlines())
    assert three.policy("others")["spec"].get("suspend", False) is False
    assert editor.prints("suspend", "logs") == "policy logs: suspended already\n"
    assert editor.prints("resume", "--all").splitlines() == [
        "policy logs: resumed",
        "policy others: not suspended",
        "catalog orders: resumed",
    ]
    assert three.policy()["spec"]["suspend"] is False


def test_who_may_only_read_is_told_for_each(three: Cluster, user: Callable[[str], User]) -> None:
    said = user("compaction-viewer").run("suspend", "logs", "ccat/orders")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.count("error: ") == 2
    assert "policy logs: " in said.stderr
    assert "catalog orders: " in said.stderr


def test_a_hold_is_a_lease_beside_that_of_the_operator(cluster: Cluster, user: Callable[[str], User]) -> None:
    holder, editor = user("compaction-holder"), user("compaction-editor")
    assert "no operator" in holder.refused("hold", "--reason", "x", "-n", cluster.namespace)
    make(cluster, coordinator_lease(0))
    assert "not permitted" in editor.refused("hold", "--reason", "x", "-n", cluster.namespace)
    assert "is not on hold" in holder.refused("release", "-n", cluster.namespace)
    said = holder.prints("hold", "--reason", "the bucket moves", "--drain", "-n", cluster.namespace)
    assert said.startswith(f"operator in {cluster.namespace}: on hold; workers are stopped")
    (lease,) = [item for item in cluster.list("lease") if item["metadata"]["name"] == HOLD_LEASE]
    assert lease["metadata"]["annotations"][ANNOTATION_HOLD_REASON] == "the bucket moves"
    assert lease["metadata"]["annotations"][ANNOTATION_HOLD_DRAIN] == "true"
    assert lease["spec"]["holderIdentity"].startswith("compaction-holder-")
    again = holder.refused("hold", "--reason", "another", "-n", cluster.namespace)
    assert "by compaction-holder-" in again
    assert ": the bucket moves. Release it first" in again
    assert "not permitted" in editor.refused("release", "-n", cluster.namespace)
    assert holder.prints("release", "-n", cluster.namespace) == f"operator in {cluster.namespace}: released\n"
    assert [item for item in cluster.list("lease") if item["metadata"]["name"] == HOLD_LEASE] == []
    holder.refused("hold", code=2)
    holder.refused("hold", "--reason", " ", code=2)


# The fleet: rows, sums, approvals of several, and Events.


def ready(status: str, reason: str = "Scheduled") -> list[dict[str, Any]]:
    return [condition("Ready", reason, status=status)]


@pytest.fixture
def fleet(three: Cluster) -> Cluster:
    """The most debt, the oldest debt and a catalog far behind are of different objects."""
    young = {"debt": {"bytes": 5 << 30}, "oldestDebtAt": ago(60), "active": 2, "queued": 1, "bytesReclaimed": 1 << 30}
    old = {"debt": {"bytes": 1 << 30}, "oldestDebtAt": ago(7200), "faulty": 3, "bytesReclaimed": 2 << 30}
    write_status(three, "cpol/logs", young | {"conditions": ready("True", "Compacting")})
    write_status(three, "cpol/others", old | {"conditions": ready("False", "JobsFaulty")})
    write_status(three, "ccat/orders", {"earliestVersion": 1, "latestVersion": 9, "conditions": ready("True")})
    return three


def names(table: str) -> list[str]:
    return [row.get("NAME") or row["CATALOG"] for row in columns_of(table.strip())]


def test_rows_are_chosen_sorted_and_limited_and_sums_are_of_all(fleet: Cluster, editor: User) -> None:
    policies, catalogs, sums = editor.prints("status").split("\n\n")
    assert (names(policies), names(catalogs)) == (["logs", "others"], ["orders"])
    assert [row["READY"] for row in columns_of(policies)] == ["True", "False"]
    assert sums == (
        "2 policies, 1 not ready: 6Gi of debt; 2 jobs run, 1 waits, 3 faulty; 3Gi reclaimed; "
        "1 catalog, 0 not ready: 7 versions behind\n"
    )
    for order, first in (("debt", "logs"), ("oldest", "others")):
        assert names(editor.prints("status", "--sort", order).split("\n\n")[0])[0] == first
    assert names(editor.prints("status", "--not-ready").split("\n\n")[0]) == ["others"]
    limited = editor.prints("status", "--sort", "debt", "--limit", "1").split("\n\n")[0]
    assert limited.splitlines()[1].startswith("logs ")
    assert limited.splitlines()[2] == "and 1 more: raise --limit"
    blue = json.loads(editor.prints("status", "-l", "team=blue", "-o", "json"))
    assert ([row["name"] for row in blue["items"]], [row["name"] for row in blue["catalogs"]]) == (["logs"], ["orders"])
    assert (blue["totals"]["policies"], blue["totals"]["debtBytes"]) == (1, 5 << 30)
    write_status(fleet, "cpol/others", {"conditions": ready("True")})
    answered = editor.run("status", "--not-ready")
    assert (answered.returncode, "not ready found" in answered.stderr) == (0, True)
    for wrong in (("logs", "--sort", "debt"), ("--watch", "--limit", "3"), ("--limit", "0"), ("--sort", "size")):
        editor.refused("status", *wrong, code=2)


def test_plans_of_several_policies_are_approved_each_by_its_own_hash(three: Cluster, editor: User) -> None:
    for name, found in (("logs", "4d5e"), ("others", "9a01")):
        three.patch(f"cpol/{name}", {"spec": {"approval": "Manual"}})
        write_status(three, f"cpol/{name}", {"plan": {"hash": found, "jobs": 2, "approval": "Pending"}})

    def approved(name: str) -> str:
        return annotations_of(three.policy(name)).get(ANNOTATION_APPROVE, "")

    said = editor.run("approve", "logs=4d5e", "others=0000", "nowhere")
    assert said.returncode == 1
    assert "policy logs: approved; " in said.stdout
    assert "No current plan has hash 0000; the current one is 9a01" in said.stderr
    assert 'no CompactionPolicy "nowhere"' in said.stderr
    assert (approved("logs"), approved("others")) == ("4d5e", "")
    assert annotations_of(three.policy())[ANNOTATION_APPROVED_BY].startswith("4d5e/compaction-editor-")
    three.patch("cpol/others", {"metadata": {"labels": {"team": "red"}}})
    assert "pass =HASH (9a01) or --yes" in editor.refused("approve", "-l", "team=red", code=2)
    assert "policy others: approved; " in editor.prints("approve", "-l", "team=red", "--yes")
    assert approved("others") == "9a01"
    assert "no plan of a policy with these labels waits" in editor.refused("approve", "-l", "team=green", "--yes")
    for wrong in ((), ("logs", "-l", "team=blue")):
        editor.refused("approve", *wrong, code=2)


def test_a_plan_that_may_not_be_approved_holds_up_no_other(
    three: Cluster, user: Callable[[str], User], control_plane: Any
) -> None:
    viewer = user("compaction-viewer")
    rule = {"apiGroups": ["compaction.dev"], "resources": ["compactionpolicies"], "verbs": ["patch"]}
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "others-only"}}
    three.apply(role | {"rules": [rule | {"resourceNames": ["others"]}]})
    bind(
        control_plane.admin,
        "others-only",
        f"compaction-viewer-{three.namespace}",
        namespace=three.namespace,
        kind="Role",
    )
    for name, found in (("logs", "4d5e"), ("others", "9a01")):
        three.patch(f"cpol/{name}", {"spec": {"approval": "Manual"}})
        write_status(three, f"cpol/{name}", {"plan": {"hash": found, "jobs": 2, "approval": "Pending"}})
    said = viewer.run("approve", "logs=4d5e", "others=9a01")
    assert said.returncode == 1
    assert "error: policy logs: " in said.stderr
    assert "policy others: approved; " in said.stdout


def test_history_says_what_ran_when_why_and_who_approved(three: Cluster, editor: User) -> None:
    assert "No history of logs yet." in editor.run("history", "logs").stderr
    work = {"job": "logs-1", "target": "/data/ra/a", "groups": 2}
    ended = {"plan": "4d5e", "reason": "Schedule", "startedAt": ago(7200), "endedAt": ago(7100), "jobs": 5}
    ended |= {"succeeded": 3, "faulty": 1, "bytesRead": 3 << 30, "bytesWritten": 1 << 30, "bytesReclaimed": 2 << 30}
    ended |= {"cpuSeconds": 130.5, "executorPeakBytes": 400 << 20}
    runs = {"plan": "9a01", "reason": "RunNow", "startedAt": ago(60), "jobs": 2, "work": [work]}
    runs |= {"approvedAt": ago(61), "approvedBy": "ada"}
    write_status(three, "cpol/logs", {"history": [ended, runs]})
    first, second = columns_of(editor.prints("history", "logs"))
    assert (first["PLAN"], first["REASON"], first["TOOK"], first["GIVEN UP"]) == ("4d5e", "Schedule", "1m40s", "1")
    assert (first["READ"], first["WRITTEN"], first["RECLAIMED"], first["BY"]) == ("3Gi", "1Gi", "2Gi", "-")
    assert (first["CPU"], first["PEAK"]) == ("2m10s", "400Mi")
    assert (second["BY"], second["GIVEN UP"], second["TOOK"][:7]) == ("ada", "-", "running")
    assert (second["CPU"], second["PEAK"]) == ("-", "-"), "what is not known is no zero"
    items = json.loads(editor.prints("history", "cpol/logs", "-o", "json"))["items"]
    assert (items[0]["tookSeconds"], items[1]["endedAt"], items[1]["work"][0]["job"]) == (100, None, "logs-1")
    cut = {"trigger": "Requested", "startedAt": ago(70), "endedAt": ago(60), "compaction": "Compacted"}
    write_status(three, "ccat/orders", {"history": [cut | {"versionsCut": 4, "bytesCut": 35}]})
    (row,) = columns_of(editor.prints("history", "orders"))
    assert (row["TRIGGER"], row["COMPACTION"], row["PROPAGATION"], row["CUT"]) == ("Requested", "Compacted", "-", "4")
    assert 'no CompactionPolicy or CatalogCompaction "nowhere"' in editor.refused("history", "nowhere")


def test_the_version_of_the_leader_is_on_its_lease(cluster: Cluster, user: Callable[[str], User]) -> None:
    editor = user("compaction-editor")
    own = version("compaction-operator")
    assert editor.prints("version", "--client") == f"Client:  {own}\n"
    assert "Operator:  none is found" in editor.prints("version")
    lease = coordinator_lease(0)
    lease["metadata"]["annotations"] = {"compaction.dev/version": "9.9"}
    make(cluster, lease)
    assert f"Operator:  9.9 in {cluster.namespace}, led by replica-a" in editor.prints("version")
    (operator,) = json.loads(editor.prints("version", "-o", "json"))["operators"]
    assert operator == {"namespace": cluster.namespace, "version": "9.9", "leader": "replica-a"}
    assert "may not read its Lease" in user("").prints("version")


def happened(name: str, about: tuple[str, str], reason: str, seconds: float, message: str = "m") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": about[0], "name": about[1], "namespace": None},
        "reason": reason,
        "message": message,
        "type": "Normal",
        "count": 2,
        "lastTimestamp": ago(seconds),
    }


def test_events_of_a_policy_are_those_of_its_jobs_too_and_of_nothing_else(three: Cluster, editor: User) -> None:
    make(three, job_object("by-hand", policy="logs"))
    make(three, job_object("logs-0000000000", policy="logs-too"))
    events = (
        ("CompactionPolicy", "logs"),
        ("CompactionJob", "by-hand"),
        ("CompactionJob", "logs-1ffe4be8ce"),
        ("CompactionJob", "others-1ffe4be8ce"),
        ("CatalogCompaction", "orders"),
        ("CompactionPolicy", "others"),
    )
    for number, about in enumerate(events):
        event = happened(f"e{number}", about, f"Reason{number}", 600 - 100 * number)
        event["involvedObject"]["namespace"] = three.namespace
        three.apply(event)
    rows = columns_of(editor.prints("events", "logs"))
    assert [(row["REASON"], row["OBJECT"]) for row in rows] == [
        ("Reason0", "cpol/logs"),
        ("Reason1", "cjob/by-hand"),
        ("Reason2", "cjob/logs-1ffe4be8ce"),
    ]
    assert (rows[0]["COUNT"], rows[0]["LAST SEEN"][:2]) == ("2", "10")
    assert [row["REASON"] for row in columns_of(editor.prints("events", "ccat/orders"))] == ["Reason4"]
    assert [row["REASON"] for row in columns_of(editor.prints("events", "by-hand"))] == ["Reason1"]
    assert 'nothing of ours is named "nowhere"' in editor.refused("events", "nowhere")
    answered = editor.run("events", "cjob/logs-0000000000")
    assert (answered.returncode, answered.stdout, "No events of " in answered.stderr) == (0, "", True)

    command = [str(editor.kubectl), "compaction", "events", "logs", "--watch", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=editor.environment) as process:
        assert process.stdout is not None
        try:
            assert {json.loads(process.stdout.readline())["reason"] for _ in range(3)} == {
                "Reason0",
                "Reason1",
                "Reason2",
            }
            late = happened("late", ("CompactionPolicy", "logs"), "Late", 0)
            late["involvedObject"]["namespace"] = three.namespace
            three.apply(late)
            assert json.loads(process.stdout.readline())["reason"] == "Late"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
