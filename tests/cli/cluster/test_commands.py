"""`kubectl compaction ...` as people type it: the real kubectl, a real API server, users with the roles we ship.

Statuses are written by the test, so that every situation is exact; tests/e2e has the operator in it.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from compaction.api.names import ANNOTATION_APPROVE, ANNOTATION_RELEASE, ANNOTATION_RETRY
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.cluster.access import ClusterAccess, models
from compaction.cli.cluster.flags import CommandTarget
from compaction.cli.cluster.requests import ObjectSelection, selected
from compaction.cli.main import COMMANDS
from compaction.core.explain.words import TARGET_WORDS
from compaction.kube.client.api import COMPACTION_POLICIES, ObjectList, Resource
from support.clocks import PATIENCE_SECONDS
from support.cluster.by_kubectl import Cluster, User, ago, columns_of, coordinator_lease, make, write_status
from support.cluster.explained import condition
from support.cluster.manifests import job_object, policy_object
from tools.servers.versitygw import free_port

pytestmark = pytest.mark.apiserver

SEGMENT = "0000000000000007.segment"


def busy_status() -> dict[str, Any]:
    ready = condition("Ready", "Compacting", status="False", message="1 jobs run, 2 wait; 163Mi to give back")
    quarantined = {
        "target": "/data/ra/a",
        "source": SEGMENT,
        "index": 24578,
        "offset": 133128,
        "reason": "SourceCorrupt",
        "message": "corrupt entry",
        "since": ago(300),
    }
    return {
        "observedGeneration": 1,
        "conditions": [ready],
        "store": "SegmentLogs",
        "debt": {"bytes": 163 << 20, "sources": 40, "targets": 4},
        "oldestDebtAt": ago(11_103),
        "etaSeconds": 130,
        "active": 1,
        "queued": 2,
        "faulty": 1,
        "succeeded": 3,
        "workers": 1,
        "lastSenseTime": ago(5),
        "lastSuccessTime": ago(605),
        "bytesReclaimed": 375 << 20,
        "cost": {"cpuSeconds": 25.0, "bytesReclaimed": 375 << 20},
        "waiting": {"reason": "NoFreeSlot", "message": "2 jobs wait; 1 of 1 workers run", "since": ago(125)},
        "quarantined": [quarantined],
        "plan": {
            "hash": "4d5e00c0ffee1234",
            "jobs": 3,
            "costBytes": 41 << 20,
            "gainBytes": 163 << 20,
            "createdAt": ago(60),
            "leftOut": [{"reason": "Cooldown", "count": 2, "example": "/data/ra/b"}],
        },
    }


@pytest.fixture
def busy(cluster: Cluster) -> Cluster:
    """A policy with a running job, one that waits and a parked one."""
    make(cluster, coordinator_lease(0))
    make(cluster, policy_object(), busy_status())
    running = {"state": "InProgress", "worker": "logs-w-1", "fencingToken": 2, "progressPercent": 34}
    make(cluster, job_object("logs-1"), running | {"assignedAt": ago(20)})
    make(cluster, job_object("logs-2"), {"state": "Unassigned"})
    failed = condition("Failed", "TooManyAttempts", message="3 attempts failed, last: no space")
    make(cluster, job_object("logs-3"), {"state": "Faulty", "conditions": [failed], "finishedAt": ago(90)})
    return cluster


def test_status_answers_what_is_behind_why_and_until_when(busy: Cluster, editor: User) -> None:
    (row,) = columns_of(editor.prints("status"))
    assert row.pop("NEXT").startswith("scan in ")
    assert row.pop("WAITING").startswith("NoFreeSlot (2m")
    assert row.pop("LAST SUCCESS").startswith("10m")
    assert row == {
        "NAME": "logs",
        "READY": "False",
        "REASON": "Compacting",
        "DEBT": "163Mi",
        "OLDEST": "3h5m",
        "ACTIVE": "1",
        "QUEUED": "2",
        "FAULTY": "1",
        "ETA": "2m10s",
        "COST": "41Mi",
        "RECLAIMED": "375Mi",
    }
    wide = columns_of(editor.prints("status", "-o", "wide"))[0]
    assert (wide["CPU"], wide["GAIN/CPU S"]) == ("25s", "15Mi")
    assert (wide["WORKERS"], wide["QUARANTINED"], wide["MESSAGE"][:10]) == ("1", "1", "1 jobs run")
    (item,) = json.loads(editor.prints("status", "-o", "json"))["items"]
    assert (item["debtBytes"], item["waiting"]["reason"], item["etaSeconds"]) == (163 << 20, "NoFreeSlot", 130)


def test_status_says_when_nobody_coordinates_and_when_the_spec_was_not_observed(cluster: Cluster, editor: User) -> None:
    make(cluster, coordinator_lease(3 * 3600))
    make(cluster, policy_object(), busy_status())
    answer = editor.run("status")
    assert columns_of(answer.stdout)[0]["NEXT"] == "no coordinator"
    assert "No operator coordinates: replica-a last renewed its Lease 3h" in answer.stderr
    make(cluster, coordinator_lease(0))
    cluster.patch("cpol/logs", {"spec": {"suspend": True}})
    assert columns_of(editor.prints("status"))[0]["NEXT"] == "spec not observed"
    assert "generation 1 of 2" in editor.prints("status", "logs")


def test_status_of_one_policy_has_its_jobs(busy: Cluster, editor: User) -> None:
    text = editor.prints("status", "logs")
    assert "Compacting for" in text
    assert "163Mi in 40 segments of 4 logs, the oldest for 3h5m" in text
    assert "25s of CPU, 15Mi reclaimed per CPU second" in text
    jobs = columns_of(text.partition("\n\n")[2])
    assert [(job["JOB"], job["STATE"]) for job in jobs] == [
        ("logs-1", "InProgress"),
        ("logs-2", "Unassigned"),
        ("logs-3", "Faulty"),
    ]
    data = yaml.safe_load(editor.prints("status", "logs", "-o", "yaml"))
    assert [job["name"] for job in data["jobs"]] == ["logs-1", "logs-2", "logs-3"]


def test_watch_prints_a_row_per_change_until_it_is_interrupted(cluster: Cluster, editor: User) -> None:
    make(cluster, policy_object(), {"active": 1})
    command = [str(editor.kubectl), "compaction", "status", "--watch", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=editor.environment) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["active"] == 1
            write_status(cluster, "cpol/logs", {"active": 7})
            assert json.loads(process.stdout.readline())["active"] == 7
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130


def test_plan_has_a_reason_for_all_that_was_left_out(busy: Cluster, editor: User) -> None:
    for job, plan in (("logs-1", "4d5e00c0ffee1234"), ("logs-2", "another")):
        busy.patch(f"cjob/{job}", {"metadata": {"labels": {"compaction.dev/plan": plan}}})
    text = editor.prints("plan", "logs")
    assert text.startswith("Plan 4d5e00c0ffee1234 of ")
    (row,) = columns_of(text.split("\n\n")[1].partition("\n2 unfinished")[0])
    assert (row["JOB"], row["ENDED"]) == ("logs-1", "-")
    assert row["STARTED"].endswith("s")
    assert (
        "2 unfinished jobs are of other plans, or created by hand: kubectl compaction status logs "
        f"-n {busy.namespace}" in text
    )
    assert "3 jobs, copies 41Mi, reclaims 163Mi" in text
    assert "\nFinished jobs took 25s of CPU, 15Mi reclaimed per CPU second.\n" in text
    (row,) = columns_of(text.rpartition("\n\n")[2])
    assert row == {
        "LEFT OUT": "Cooldown",
        "COUNT": "2",
        "FOR EXAMPLE": "/data/ra/b",
        "WHY": TARGET_WORDS["Cooldown"].says,
    }
    data = json.loads(editor.prints("plan", "logs", "-o", "json"))
    assert (data["hash"], data["plannedJobs"], data["leftOut"][0]["reason"]) == ("4d5e00c0ffee1234", 3, "Cooldown")
    assert [item["name"] for item in data["jobs"]] == ["logs-1"]


def test_a_plan_without_a_job_says_when_the_next_one_is_due(cluster: Cluster, editor: User) -> None:
    waiting = {"reason": "WaitingForMore", "count": 200, "dueAt": "2030-01-01T01:00:00Z", "missing": 5}
    make(cluster, policy_object(), {"plan": {"leftOut": [waiting]}})
    assert editor.prints("plan", "logs").splitlines()[0] == (
        f"No plan of {cluster.namespace}/logs had a job yet. Nothing is due yet: 200 segments wait; "
        "next due at 2030-01-01T01:00:00Z, or when 5 more have come."
    )


def test_why_explains_a_policy_and_a_job(busy: Cluster, editor: User) -> None:
    policy = editor.prints("why", "logs")
    for sentence in (
        "163Mi could be reclaimed by 40 segments",
        "Waiting for NoFreeSlot, 2m",
        "Job logs-1 runs on",
    ):
        assert sentence in policy
    assert editor.prints("why", "cpol/logs").splitlines()[0] == policy.splitlines()[0]
    job = json.loads(editor.prints("why", "cjob/logs-3", "-o", "json"))
    assert job["subject"].endswith("/logs-3: Faulty")
    assert any(f"kubectl compaction retry -n {busy.namespace} logs-3" in sentence for sentence in job["actions"])
    assert "pod is not cpol (a policy), cjob (a job) or ccat (a catalog)" in editor.refused("why", "pod/logs")


def test_approve_takes_the_current_plan_and_no_other(cluster: Cluster, editor: User) -> None:
    def approved() -> str:
        annotation: str = cluster.policy()["metadata"].get("annotations", {}).get(ANNOTATION_APPROVE, "")
        return annotation

    make(cluster, policy_object(approval="Manual"), {"plan": {"leftOut": []}})
    assert "No plan of policy logs waits" in editor.refused("approve", "logs", "--yes")
    work = {"job": "logs-1", "target": "/data/ra/a", "groups": 2, "costBytes": 1 << 20, "gainBytes": 3 << 20}
    plan = {"hash": "4d5e", "jobs": 3, "costBytes": 2 << 20, "gainBytes": 9 << 20, "approval": "Pending"}
    write_status(
        cluster, "cpol/logs", {"plan": plan | {"waitingSince": ago(125), "createdAt": ago(60), "work": [work]}}
    )
    shown = editor.prints("plan", "logs")
    assert "3 jobs, copies 2Mi, reclaims 9Mi" in shown
    assert columns_of(shown.split("\n\n")[1])[0]["RECLAIMS"] == "3Mi"
    assert "and 2 more with a smaller gain" in shown
    assert re.search(r"has waited 2m\d*s? for approval: kubectl compaction approve logs=4d5e -n ", shown)
    assert columns_of(editor.prints("status"))[0]["COST"] == "2Mi"
    mistyped = editor.refused("approve", "logs=0000")
    assert "No current plan has hash 0000; the current one is 4d5e. " in mistyped
    assert f"Review: kubectl compaction plan logs -n {cluster.namespace}" in mistyped
    assert "pass =HASH (4d5e) or --yes" in editor.refused("approve", "logs", code=2)
    declined = editor.run("approve", "logs", typed="n\n")
    assert (declined.returncode, "Approve it?" in declined.stdout) == (130, True)
    assert approved() == ""
    assert "its 3 jobs are created" in editor.prints("approve", "logs=4d5e")
    assert approved() == "4d5e"
    assert "It was approved; the coordinator scans the store" in editor.prints("plan", "logs")
    write_status(cluster, "cpol/logs", {"plan": plan | {"hash": "9999"}})
    assert "its 3 jobs are created" in editor.run("approve", "logs", typed="y\n").stdout
    assert editor.prints("approve", "logs", "--yes").startswith("Plan 9999 of ")
    assert approved() == "9999"
    write_status(cluster, "cpol/logs", {"plan": plan | {"hash": "9999", "approval": "Approved"}})
    assert "approved already" in editor.prints("approve", "logs=9999")
    cluster.patch("cpol/logs", {"spec": {"approval": "Auto"}})
    assert "by itself (spec.approval: Auto)" in editor.refused("approve", "logs", "--yes")


def test_retry_takes_parked_jobs_only_and_the_others_hold_nothing_up(busy: Cluster, editor: User) -> None:
    answer = editor.run("retry", "logs-1", "nowhere", "cjob/logs-3")
    assert answer.returncode == 1
    assert "job logs-1 is InProgress, not Faulty: a worker is at it" in answer.stderr
    assert 'no CompactionJob "nowhere" in namespace' in answer.stderr
    assert answer.stdout == "job logs-3: retry requested; the coordinator resets its attempts\n"
    marks = {job["metadata"]["name"]: job["metadata"].get("annotations", {}) for job in busy.jobs()}
    assert ANNOTATION_RETRY in marks["logs-3"]
    assert not any(ANNOTATION_RETRY in marks[name] for name in ("logs-1", "logs-2"))


def test_quarantine_is_listed_and_released(busy: Cluster, editor: User) -> None:
    (row,) = columns_of(editor.prints("quarantine"))
    assert row.pop("AGE").startswith("5m")
    assert row == {
        "POLICY": "logs",
        "TARGET": "/data/ra/a",
        "SOURCE": SEGMENT,
        "INDEX": "24578",
        "OFFSET": "133128",
        "REASON": "SourceCorrupt",
    }
    assert "not in quarantine: /data/ra/b/1.segment" in editor.refused(
        "quarantine", "logs", "--release", "/data/ra/b/1.segment"
    )
    assert "or give --all" in editor.refused("quarantine", "logs", "--release", code=2)
    assert "give --release too" in editor.refused("quarantine", "logs", "--all", code=2)
    assert "neither -A nor -o" in editor.refused("quarantine", "logs", "--release", "--all", "-o", "json", code=2)
    assert columns_of(editor.prints("quarantine", "logs", f"/data/ra/a/{SEGMENT}"))
    assert "not in quarantine: other" in editor.refused("quarantine", "logs", "other")
    assert "release of 1 source requested" in editor.prints("quarantine", "logs", "--release", f"/data/ra/a/{SEGMENT}")
    asked = f"/data/ra/a/{SEGMENT}"
    assert busy.policy()["metadata"]["annotations"][ANNOTATION_RELEASE] == asked
    write_status(busy, "cpol/logs", {"released": asked})
    editor.prints("quarantine", "logs", "--release", asked)
    assert busy.policy()["metadata"]["annotations"][ANNOTATION_RELEASE] == f"{asked},{asked}"
    editor.prints("quarantine", "logs", "--release", "--all")
    assert busy.policy()["metadata"]["annotations"][ANNOTATION_RELEASE] == "all"


def test_a_viewer_reads_and_is_told_what_it_may_not(busy: Cluster, user: Callable[[str], User], namespace: str) -> None:
    viewer = user("compaction-viewer")
    for args in (("status",), ("status", "logs"), ("plan", "logs"), ("why", "logs"), ("quarantine",)):
        assert viewer.prints(*args)
    told = viewer.refused("retry", "logs-3")
    assert 'cannot patch resource "compactionjobs"' in told
    assert "compaction-editor" in told
    assert 'cannot list resource "compactionpolicies"' in viewer.refused("status", "-A")
    assert "compaction-viewer" in user("").refused("status", "-n", namespace)


def test_a_policy_without_anything_in_it_is_no_error(cluster: Cluster, editor: User) -> None:
    answer = editor.run("status")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == f"No policies or catalogs found in {cluster.namespace} namespace.\n"
    make(cluster, policy_object())
    assert columns_of(editor.prints("status"))[0]["REASON"] == "-"
    assert "not scanned yet" in editor.prints("status", "logs")
    assert "its store was not scanned" in editor.prints("plan", "logs")
    assert "No operator has observed it yet." in editor.prints("why", "logs")
    assert "no source is in quarantine" in editor.refused("quarantine", "logs", "--release", "--all")
    assert 'no CompactionPolicy or CatalogCompaction "other"' in editor.refused("status", "other")
    assert 'no CompactionPolicy or CatalogCompaction "other"' in editor.refused("status", "other", "--watch")
    for name in ("logs?watch=true", "cpol/a b", "a b", ""):
        assert "is not the name of a CompactionPolicy" in editor.refused("status", name)
    for name in ("../../../version", "cjob/logs"):
        assert "is not cpol (a policy) or ccat (a catalog)" in editor.refused("status", name)
    assert "not scanned yet" in editor.prints("status", "cpol/logs")


def test_no_cluster_no_context_and_no_definitions_are_told_apart(
    control_plane: Any, editor: User, tmp_path: Path
) -> None:
    def kubeconfig(server: str) -> str:
        document = yaml.safe_load(control_plane.kubeconfig.read_text())
        document["clusters"][0]["cluster"]["server"] = server
        path = tmp_path / "other.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    assert "does not answer" in editor.refused("status", "--kubeconfig", kubeconfig(f"https://127.0.0.1:{free_port()}"))
    # Below this path the server knows no kinds at all, as one without our definitions does not know ours.
    bare = kubeconfig(f"{control_plane.url}/without-kinds")
    for args in (("status",), ("status", "logs"), ("retry", "logs-1")):
        assert "apply the resource definitions first" in editor.refused(*args, "--kubeconfig", bare)
    assert "cannot be used" in editor.refused("status", "--context", "elsewhere")
    assert "give -n, not -A" in editor.refused("status", "logs", "-A", code=2)


def test_every_command_is_a_plugin_of_kubectl(busy: Cluster, editor: User) -> None:
    text = editor.plugin("--help").stdout
    assert text.startswith("Usage: kubectl compaction ")
    listed = re.findall(r"^  ([a-z-]+)  +\S", text.partition("Commands:")[2], flags=re.MULTILINE)
    assert listed == list(COMMANDS)
    answer = editor.plugin("quarantine", "-o", "yaml")
    assert answer.returncode == 0, answer.stderr
    assert SEGMENT in answer.stdout
    refused = editor.plugin("approve", "logs")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: policy logs carries out its plans by itself")


def test_a_policy_of_an_older_schema_is_named_and_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = policy_object("good"), policy_object("bad")
    for body in (good, bad):
        body["metadata"]["namespace"] = "storage"
    bad["spec"]["store"]["segmentLogs"]["root"] = "relative"
    found = models(CompactionPolicy, [bad, good])
    assert [policy.metadata.name for policy in found] == ["good"]
    told = capsys.readouterr().err
    assert told.startswith("error: CompactionPolicy storage/bad is not valid: spec.store.segmentLogs.root: ")
    # Asked for with --all it did not take it, and the exit code says so.
    access = ClusterAccess(Lists(bad, good), CommandTarget())  # type: ignore[arg-type]
    subjects, code = asyncio.run(selected(access, ObjectSelection(everything=True)))
    assert ([subject.metadata.name for subject in subjects], code) == (["good"], 1)


class Lists:
    """The lists of an API server with an older definition, which no real one here has."""

    connection = SimpleNamespace(namespace="storage")

    def __init__(self, *policies: dict[str, Any]) -> None:
        self.policies = policies

    async def list(self, resource: Resource, **_: Any) -> ObjectList:
        return ObjectList(self.policies if resource == COMPACTION_POLICIES else (), "1")


def test_flags_of_the_cluster_stand_before_or_after_the_verb_and_after_wins(cluster: Cluster, editor: User) -> None:
    make(cluster, policy_object("logs"))
    first, second = editor.prints("-n", cluster.namespace, "status"), editor.prints("status", "-n", cluster.namespace)
    assert columns_of(first)[0]["NAME"] == columns_of(second)[0]["NAME"] == "logs"
    assert "logs" in editor.prints("-n", "elsewhere", "why", "logs", "-n", cluster.namespace)
    assert "not permitted" in editor.refused("-n", "elsewhere", "why", "logs")
    assert "Error: give either" in editor.refused("-n", "elsewhere", "-A", "status", code=2)
    assert "not permitted" in editor.refused("-A", "status"), "this user reads one namespace"
    assert "logs" in editor.prints("-A", "status", "-n", cluster.namespace)
    assert "logs" in editor.plugin("-n", cluster.namespace, "why", "logs").stdout


def test_impersonation_is_the_api_servers_to_allow(
    cluster: Cluster, control_plane: Any, user: Callable[[str], User]
) -> None:
    make(cluster, policy_object("logs"))
    user("compaction-viewer")
    admin = User(control_plane.binaries.kubectl, control_plane.kubeconfig)
    viewer = f"compaction-viewer-{cluster.namespace}"
    where = ("-n", cluster.namespace)
    assert "logs" in admin.prints(*where, "--as", viewer, "status")
    refused = admin.refused(*where, "--as", viewer, "quarantine", "logs", "--release", "--all")
    assert "no source is in quarantine" in refused
    stranger = admin.refused(*where, "status", "--as", "stranger", "--as-group", "strangers")
    assert "not permitted" in stranger
    assert '"stranger"' in stranger
    assert "logs" in admin.prints(*where, "status", "--as", "stranger", "--as-group", "system:masters")
    assert "--as-group needs --as" in admin.refused(*where, "status", "--as-group", "strangers", code=2)
    assert "cannot impersonate" in user("compaction-editor").refused("status", "--as", viewer)
