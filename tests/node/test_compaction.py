"""Operator and workers in pods of a namespace with PodSecurity `restricted`: from a policy to receipts, and through
every way in which pods, node and API server go away. Nothing is lost, nothing is left.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from compaction.kube.launchers.pods import GRACE_SECONDS
from compaction.segments.commit import fence
from compaction.segments.generate import Pattern
from node.next_image import NEXT, write_next
from node.on_node import OPERATOR, Installation, commands_of, type_in
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.by_kubectl import LogRoot, Object, condition
from support.timing import at_depth
from tools.images.build import Image, ensure_images
from tools.node.places import NODE_NAME
from tools.node.running import full_name, import_archive
from tools.node.servers import API_SERVER


def much_to_do(installation: Installation, policy: str) -> LogRoot:
    """Logs with 5 MB to copy, in several groups of one job."""
    logs = installation.logs_for(policy)
    logs.add("a", segments=25, entries_per_segment=1024, payload_bytes=1024, live_fraction=0.2)
    return logs


def at_work(installation: Installation, policy: str, **more: Any) -> LogRoot:
    """The logs of a new policy whose one job has a task that writes, and does not end before `await_done`. `more`: of
    the policy.
    """
    logs = much_to_do(installation, policy)
    installation.slow_policy(policy, **more)
    # A job is InProgress seconds before a pod has a task of it: what loses such a pod fails no task.
    eventually(logs.leftovers, f"a task of {policy} to write")
    return logs


def await_done(installation: Installation, policy: str, logs: LogRoot) -> list[Object]:
    """Every job of the policy succeeded once, what can be read is unchanged, and nothing is left of the work."""

    def done() -> list[Object]:
        jobs = installation.jobs(policy)
        ended = [job for job in jobs if job.get("status", {}).get("state") == "Succeeded"]
        return jobs if jobs and len(ended) == len(jobs) else []

    installation.let_go(policy)
    jobs = eventually(done, f"the jobs of {policy} to succeed")
    for job in jobs:
        receipt = job["status"]["receipt"]
        assert receipt["fingerprintBefore"] == receipt["fingerprintAfter"] != ""
        assert receipt["token"] == job["status"]["fencingToken"]
        assert receipt["groupsCommitted"] == receipt["groups"] == len(job["spec"]["sources"]["segmentLog"]["groups"])
        assert receipt["bytesReclaimed"] > 0
    for name in logs.before:
        receipts = fence.read(logs.path / name).receipts
        assert len({receipt.group for receipt in receipts}) == len(receipts) > 0
    logs.assert_unchanged()
    eventually(lambda: not logs.leftovers(), "what dead attempts left behind to be deleted")
    installation.kubectl("delete", "cpol", policy)
    eventually(lambda: not installation.jobs(policy), "the jobs to be deleted")
    installation.await_nothing_left(policy)
    return jobs


def test_from_a_policy_to_receipts(installation: Installation) -> None:
    logs = installation.logs_for("main")
    for pattern in Pattern:
        logs.add(pattern.value, pattern=pattern, entries_per_segment=256, payload_bytes=512)
    installation.apply_policy("main", executors=2)
    # Both executors do the work of one driver.
    eventually(lambda: len(installation.executors("main")) == 2, "two executors")
    [driver] = installation.drivers("main")
    assert driver["spec"]["serviceAccountName"] == "compaction-worker"
    assert {executor["spec"]["serviceAccountName"] for executor in installation.executors("main")} == {
        "compaction-executor"
    }
    eventually(
        lambda: installation.cluster.policy("main").get("status", {}).get("debt", {}).get("bytes") == 0, "no debt"
    )
    assert condition(installation.cluster.policy("main"), "Ready")["status"] == "True"
    jobs = await_done(installation, "main", logs)
    assert {job["status"]["fencingToken"] for job in jobs} == {1}
    # Tasks ran in pods of their own, and what they used came back with their results.
    assert min(job["status"]["receipt"]["usage"]["executorCpuSeconds"] for job in jobs) > 0
    labels = [pod["metadata"]["labels"] for pod in (driver, *installation.executors("main"))]
    assert {(each["compaction.dev/policy"], each["app.kubernetes.io/name"]) for each in labels} == {
        ("main", "compaction-worker")
    }, "what tools that allocate cost by labels need"


def test_the_page_about_installing_is_right(installation: Installation) -> None:
    """Its policy is for all logs of the volume: they are a directory that no other test has."""
    logs = installation.logs_for("page")
    logs.add("a", segments=9, entries_per_segment=256, payload_bytes=512)
    said = type_in(installation.node, commands_of("3. A policy"))
    assert "condition met" in said
    await_done(installation, "segment-logs", logs)


def test_a_killed_leader_is_succeeded(installation: Installation) -> None:
    logs = at_work(installation, "leader")
    first = installation.leader()
    [pod] = [operator for operator in installation.operators() if operator["metadata"]["name"] == first]
    installation.kill(pod)
    installation.kubectl("delete", "pod", first, "--force", "--grace-period=0")
    eventually(lambda: installation.leader() not in {"", first}, "another leader")
    [job] = await_done(installation, "leader", logs)
    # The driver outlived its coordinator: the successor adopts its attempt.
    assert job["status"]["fencingToken"] == 1


def test_a_killed_driver_is_replaced(installation: Installation) -> None:
    logs = at_work(installation, "driver")
    [driver] = installation.drivers("driver")
    installation.kill(driver)
    eventually(
        lambda: [
            item for item in installation.drivers("driver") if item["metadata"]["uid"] != driver["metadata"]["uid"]
        ],
        "another driver",
    )
    [job] = await_done(installation, "driver", logs)
    assert job["status"]["fencingToken"] >= 2


def test_a_drained_node_comes_back(installation: Installation) -> None:
    logs = at_work(installation, "drain")
    # One of the two operators stays: their disruption budget says so, and there is no other node. So all of this time
    # is waited; a worker that was told to end is gone within its grace.
    patience = f"--timeout={at_depth(short=GRACE_SECONDS + 5, deep=60)}s"
    said = installation.kubectl(
        "drain", NODE_NAME, "--ignore-daemonsets", "--delete-emptydir-data", "--force", patience, check=False
    )
    assert "disruption budget" in said
    assert not installation.drivers("drain") + installation.executors("drain")
    installation.kubectl("uncordon", NODE_NAME)
    [job] = await_done(installation, "drain", logs)
    # What the cluster took away is not the job's fault.
    assert job["status"].get("failures", 0) == 0
    installation.kubectl("rollout", "status", f"deployment/{OPERATOR}", TIMEOUT_FLAG)


def test_an_api_server_that_is_away_for_longer_than_every_lease(installation: Installation) -> None:
    logs = at_work(installation, "outage")
    installation.node.hold(API_SERVER)
    # Those of jobs and workers last ten seconds, the coordinator's fifteen.
    time.sleep(at_depth(short=20, deep=60))
    installation.node.release(API_SERVER)
    eventually(installation.answers, "the API server to answer")
    await_done(installation, "outage", logs)


def test_an_upgrade_in_the_middle_of_a_job(installation: Installation, tmp_path: Path) -> None:
    logs = at_work(installation, "upgrade")
    newer = f"{installation.kubectl('get', 'deployment', OPERATOR, '-o', 'jsonpath={..image}')}-next"
    [built] = ensure_images((Image.OPERATOR,), report=print)
    write_next(built.archive, tmp_path / "next.tar", name=full_name(newer))
    import_archive(installation.node, tmp_path / "next.tar")
    installation.kubectl("set", "image", f"deployment/{OPERATOR}", f"operator={newer}")
    installation.kubectl("rollout", "status", f"deployment/{OPERATOR}", TIMEOUT_FLAG)
    running = installation.operators()
    assert {item["spec"]["containers"][0]["image"] for item in running} == {newer}
    [job] = await_done(installation, "upgrade", logs)
    assert job["status"]["fencingToken"] == 1
    said = installation.kubectl("get", "events", "--field-selector", "reason=WorkerVersionSkew", "-o", "json")
    assert NEXT in said
