"""Workers that wait in a queue of Kueue's, with its real manager and webhooks: held back, admitted, and taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from compaction.kube.launchers.pods import QUEUE_LABEL
from node.kueue import QUEUE, QUOTA, Queue, kueue
from node.on_node import NAMESPACE, Installation, deleted, other_pod, priority_class
from node.test_compaction import await_done, much_to_do
from node.test_launchers import of, pending, without_executors
from support.clocks import eventually
from support.cluster.by_kubectl import Object
from support.timing import at_depth

GATE = "kueue.x-k8s.io/admission"


@pytest.fixture(scope="module")
def queue(installation: Installation, report: Callable[[str], None]) -> Iterator[Queue]:
    with kueue(installation, report) as made:
        yield made


def await_gated(installation: Installation, policy: str, *, besides: str = "") -> Object:
    """A driver pod that the queue holds back, and the policy that says so. `besides`: the uid of an earlier one."""

    def gated() -> Object | None:
        pods = installation.pods(f"compaction.dev/component=worker,compaction.dev/policy={policy}")
        held = (pod for pod in pods if {"name": GATE} in pod["spec"].get("schedulingGates", ()))
        return next((item for item in held if of(item) != besides and not deleted(item)), None)

    pod = eventually(gated, "a worker that the queue holds back")
    waits = eventually(lambda: pending(installation, policy), f"{policy} to wait")
    assert f"LocalQueue {NAMESPACE}/{QUEUE} has not admitted its pod ({GATE}" in waits["message"]
    assert waits["since"]
    return pod


@contextmanager
def stopped(installation: Installation, queue: Queue) -> Iterator[None]:
    """An administrator stops the queue, and has all leave it."""
    queue.set(stop="HoldAndDrain")
    yield
    queue.set()


@contextmanager
def outranked(installation: Installation, queue: Queue) -> Iterator[None]:
    """A pod of a higher class takes the whole quota."""
    with (
        priority_class(installation, "urgent", 1000),
        other_pod(installation, "urgent", requests=QUOTA, labels={QUEUE_LABEL: QUEUE}, priority="urgent"),
    ):
        yield


TAKEN_BACK: tuple[Callable[[Installation, Queue], AbstractContextManager[None]], ...]
TAKEN_BACK = at_depth(short=(stopped,), deep=(stopped, outranked))


@pytest.mark.parametrize("taken_back", TAKEN_BACK)
def test_a_worker_waits_for_its_queue_and_gives_way_to_it(
    installation: Installation,
    queue: Queue,
    taken_back: Callable[[Installation, Queue], AbstractContextManager[None]],
) -> None:
    policy = taken_back.__name__
    logs = much_to_do(installation, policy)
    queue.set(stop="Hold")
    installation.slow_policy(policy, pods=without_executors(queueName=QUEUE))
    held = await_gated(installation, policy)
    said = installation.why(policy)
    assert f"LocalQueue {NAMESPACE}/{QUEUE} has not admitted its pod" in said
    assert "1 job waiting for WorkerPending, " in said
    # Kueue makes it behind the pod that it gates.
    [workload] = eventually(queue.workloads, "the workload of the gated pod")
    assert workload["spec"]["queueName"] == QUEUE
    # A queue is no failure of a worker, however long it takes.
    assert installation.condition(policy)["status"] == "True"

    queue.set()
    installation.await_at_work(policy)
    [driver] = installation.drivers(policy)
    assert of(driver) == of(held)

    with taken_back(installation, queue):
        await_gated(installation, policy, besides=of(driver))
    [job] = await_done(installation, policy, logs)
    # What the queue took back is not the job's fault.
    assert job["status"].get("failures", 0) == 0
    assert job["status"]["fencingToken"] >= 2
    eventually(lambda: not queue.workloads(), "the workloads to go with their pods")
