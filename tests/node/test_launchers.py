"""Workers in pods, where the cluster takes away, refuses or holds back what they need: memory, executors, room, a
priority class, a size. The policy says what is wrong and what to do, its siblings go on, and no work is lost.
"""

from __future__ import annotations

import json
from typing import Any

from node.on_node import NAMESPACE, Installation, other_pod, priority_class, small
from node.test_compaction import at_work, await_done, much_to_do
from support.clocks import eventually
from support.cluster.by_kubectl import Object
from tools.node.places import NODE_NAME

LITTLE = {"cpu": "100m", "memory": "768Mi"}
"""The least memory that a policy may give its pods."""
IN_MEMORY = {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]}}
"""A pod template whose scratch counts as memory of the pod."""
FILL = """
with open("/tmp/fill", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
        file.flush()
"""


def use_up(installation: Installation, pod: Object) -> None:
    """Write into the pod's scratch in memory until the kernel kills what is in its control group."""
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]

    def killed() -> bool:
        installation.kubectl("exec", name, "--", "python3", "-c", FILL, check=False)
        return of(pod) not in map(of, installation.running(f"compaction.dev/policy={labels['compaction.dev/policy']}"))

    eventually(killed, f"{name} to be killed")


def without_executors(**more: Any) -> dict[str, Any]:
    """A worker that is one pod: its driver runs all tasks itself."""
    return {"executor": {"instances": 0}, **more}


def of(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def container(pod: Object) -> Object:
    found: Object = pod["spec"]["containers"][0]
    return found


def test_a_driver_out_of_memory_is_followed_by_one_that_has_more(installation: Installation) -> None:
    """Beside it a policy that has nothing to do with it."""
    calm = at_work(installation, "calm", pods=without_executors())
    logs = at_work(installation, "oom", pods=without_executors(driver=LITTLE, podTemplate=IN_MEMORY))
    [first] = installation.drivers("oom")
    use_up(installation, first)
    installation.cluster.await_events("DriverMemoryRaised")
    raised = eventually(
        lambda: installation.cluster.policy("oom")["status"].get("driverMemoryBytes"), "the status to have it"
    )
    assert raised == 2 * (768 << 20)
    said = installation.why("oom")
    assert "The next driver gets 1.5Gi of memory: one was killed for using more than it had." in said
    lost = installation.await_attempt("oom", "WorkerOutOfMemory", "EngineLost")
    assert lost["worker"] == first["metadata"]["name"]
    [job] = await_done(installation, "oom", logs)
    assert job["status"]["worker"] != first["metadata"]["name"]
    [undisturbed] = await_done(installation, "calm", calm)
    assert undisturbed["status"]["fencingToken"] == 1


def test_executors_out_of_memory_wait_for_a_person_to_raise_it(installation: Installation) -> None:
    """Where maxMemory does not let the operator do it: the job's attempt says which field, and ends once it is done."""
    short = {"executor": LITTLE | {"maxMemory": "768Mi", "instances": 1, "cores": 1}, "podTemplate": IN_MEMORY}
    logs = at_work(installation, "starved", pods=short | {"sparkConf": {"spark.task.maxFailures": "1"}})
    [executor] = eventually(lambda: installation.executors("starved"), "an executor")
    use_up(installation, executor)
    lost = installation.await_attempt("starved", "WorkerOutOfMemory")
    assert "raise spec.workers.executor.memory" in lost["message"]
    [job] = installation.jobs("starved")
    assert "killed for using more memory" in installation.why(job["metadata"]["name"])
    enough = {"executor": small() | {"instances": 1, "cores": 1}, "podTemplate": IN_MEMORY}
    installation.slow_policy("starved", pods=enough)
    [job] = await_done(installation, "starved", logs)
    assert job["status"]["failures"] == 1


def test_executors_that_are_killed_and_deleted_are_replaced(installation: Installation) -> None:
    """Both of a worker, in the middle of its job, which goes on with others."""
    logs = at_work(installation, "executors", executors=2)
    first = eventually(
        lambda: found if len(found := installation.executors("executors")) == 2 else None, "both executors"
    )
    installation.kill(first[0])
    installation.kubectl("delete", "pod", first[1]["metadata"]["name"], "--wait=false")
    before = {of(item) for item in first}

    def replaced() -> bool:
        now = {of(executor) for executor in installation.executors("executors")}
        return len(now - before) == 2

    eventually(replaced, "two other executors")
    [job] = await_done(installation, "executors", logs)
    assert job["status"]["fencingToken"] == 1


def refused(installation: Installation, policy: str, *words: str) -> str:
    """The message of the condition that says why no worker can be made, with these words."""

    def said() -> str:
        ready = installation.condition(policy)
        message = str(ready.get("message", ""))
        return message if ready.get("reason") == "LaunchFailed" and all(word in message for word in words) else ""

    return eventually(said, f"{policy} to say {words}")


def test_a_priority_class_is_named_when_it_is_missing_and_its_workers_give_way(installation: Installation) -> None:
    logs = much_to_do(installation, "bulk")
    installation.slow_policy("bulk", pods=without_executors(priorityClassName="bulk"))
    message = refused(installation, "bulk", "no PriorityClass with name bulk was found")
    assert message.endswith("create it, or correct spec.workers.priorityClassName")
    with priority_class(installation, "bulk", -10), priority_class(installation, "urgent", 1000):
        installation.await_at_work("bulk")
        [driver] = installation.drivers("bulk")
        assert driver["spec"]["priority"] == -10
        place = {"memory": str(whats_left(installation) + asked(driver) // 2)}
        with other_pod(installation, "urgent", requests=place, priority="urgent"):
            # It finds room only where the worker is.
            waits = eventually(lambda: pending(installation, "bulk"), "the next worker to wait")
            assert "Insufficient memory" in waits["message"]
            assert "Insufficient memory" in installation.why("bulk")
        [job] = await_done(installation, "bulk", logs)
    # What the cluster took away is not the job's fault.
    assert job["status"].get("failures", 0) == 0


def whats_left(installation: Installation) -> int:
    """Bytes of memory that no pod of the node asks for."""
    node = json.loads(installation.kubectl("get", "node", NODE_NAME, "-o", "json"))
    everywhere = json.loads(installation.kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    taken = sum(asked(pod) for pod in everywhere if pod["status"].get("phase") in ("Pending", "Running"))
    return in_bytes(node["status"]["allocatable"]["memory"]) - taken


def asked(pod: Object) -> int:
    requests = (item.get("resources", {}).get("requests", {}) for item in pod["spec"]["containers"])
    return sum(in_bytes(request.get("memory", "0")) for request in requests)


def in_bytes(quantity: str) -> int:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)


def pending(installation: Installation, policy: str) -> Object | None:
    """What a worker of the policy waits for."""
    waits = installation.cluster.policy(policy).get("status", {}).get("waits", [])
    return next((wait for wait in waits if wait["reason"] == "WorkerPending"), None)


def test_a_limit_range_refuses_in_its_own_words_or_gives_its_defaults(installation: Installation) -> None:
    def limit_range(**limits: Any) -> None:
        spec = {"limits": [{"type": "Container", **limits}]}
        installation.cluster.apply(
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "sizes"}, "spec": spec}
        )

    limit_range(max={"memory": "1Gi"})
    logs = much_to_do(installation, "sizes")
    installation.apply_policy("sizes", pods=without_executors())
    message = refused(installation, "sizes", "maximum memory usage per Container is 1Gi, but limit is 1610612736")
    assert f"kubectl describe limitrange -n {NAMESPACE}" in message
    assert "spec.workers.driver" in message
    assert "maximum memory usage per Container" in installation.why("sizes")
    installation.kubectl("delete", "limitrange", "sizes")
    limit_range(default={"cpu": "1500m"}, max={"memory": "2Gi"})
    driver = eventually(lambda: installation.drivers("sizes"), "a driver")[0]
    assert container(driver)["resources"]["limits"]["cpu"] == "1500m"
    await_done(installation, "sizes", logs)
    installation.kubectl("delete", "limitrange", "sizes")
