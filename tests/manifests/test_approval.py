"""Four eyes on a real API server: with components/approval editors cannot approve and approvers cannot edit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.core.planning.debt import TargetProblem
from compaction.segments.reasons import SegmentReason
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.control_plane import NAMESPACED, ROOT, ControlPlane, with_components
from support.cluster.explained import KStatus, health, kstatus
from support.cluster.world import PlainCluster

SYSTEM = "compaction-system"
OTHER = "--serviceaccount=other:compaction-operator"
OPERATOR = "compaction-operator"
JOB = (ROOT / "manifests" / "examples" / "job.yaml").read_text()
POLICY = """\
apiVersion: compaction.dev/v1alpha1
kind: CompactionPolicy
metadata: {name: logs}
spec:
  approval: Manual
  store: {segmentLogs: {root: /data/ra}}
"""


@pytest.mark.apiserver
def test_who_writes_a_policy_does_not_approve_its_plans(empty_plane: ControlPlane, tmp_path: Path) -> None:
    kubectl = empty_plane.kubectl
    kubectl("apply", "--server-side", "-k", str(with_components(tmp_path / "mine", NAMESPACED, "approval")))
    kubectl("wait", "--for=condition=Established", TIMEOUT_FLAG, "crd", "--all")
    kubectl("create", "rolebinding", "other", "--clusterrole=compaction-editor", OTHER, namespace=SYSTEM)
    for user in ("editor", "approver"):
        role = f"--clusterrole=compaction-{user}"
        kubectl("create", "rolebinding", user, role, f"--user={user}", namespace=SYSTEM)

    def attempt(user: str, *command: str, input: str | None = None) -> str:
        answer = kubectl(*command, f"--as={user}", namespace=SYSTEM, input=input, check=False)
        return "" if answer.returncode == 0 else answer.stderr

    assert attempt("editor", "create", "-f", "-", input=POLICY) == ""
    approve = ("annotate", "cpol", "logs", "--overwrite")
    edit = ("patch", "cpol", "logs", "--type=merge", "-p")

    # The API server takes a moment to see a new admission policy. What an earlier attempt has set is no change, and is
    # not refused: each has another value.
    values = itertools.count()
    eventually(
        lambda: "may approve a plan" in attempt("editor", *approve, f"compaction.dev/approve=a{next(values)}"),
        "the refusal of an editor",
    )
    assert attempt("approver", *approve, "compaction.dev/approve=b2") == ""
    assert attempt("approver", *approve, "compaction.dev/release=all") == ""
    refused = attempt("approver", *edit, '{"spec": {"suspend": true}}')
    assert "approvers annotate" in refused
    assert attempt("editor", *edit, '{"spec": {"suspend": true}}') == "", "an approval that stays is no approval"
    assert "may approve a plan" in attempt("editor", *approve, "compaction.dev/approve-")
    already = POLICY.replace("{name: logs}", "{name: other, annotations: {compaction.dev/approve: c3}}")
    assert "may approve a plan" in attempt("editor", "create", "-f", "-", input=already)
    # A job by hand is work that nobody approved. Of users and operator only the operator writes the status of jobs.
    trial = ("create", "--dry-run=server", "-f", "-")
    eventually(lambda: "may create jobs" in attempt("editor", *trial, input=JOB), "the refusal of an editor's job")
    assert "may create jobs" in attempt(f"system:serviceaccount:other:{OPERATOR}", "create", "-f", "-", input=JOB)
    assert attempt(f"system:serviceaccount:{SYSTEM}:{OPERATOR}", "create", "-f", "-", input=JOB) == ""
    assert attempt("editor", "annotate", "cjob", "by-hand", "compaction.dev/retry=1") == ""
    assert attempt("editor", "delete", "cjob", "by-hand") == ""
    both = "--clusterrole=compaction-approver"
    kubectl("create", "rolebinding", "both", both, "--user=editor", namespace=SYSTEM)
    eventually(lambda: attempt("editor", "create", "-f", "-", input=JOB) == "", "who may approve to create a job")


# Argo CD's health script (Lua, as its own interpreter runs it) agrees with kstatus in every phase.

SAME = {
    KStatus.CURRENT: {"Healthy", "Suspended"},
    KStatus.IN_PROGRESS: {"Progressing"},
    KStatus.FAILED: {"Degraded"},
}


def policies() -> list[tuple[str, dict[str, Any]]]:
    """A policy in its phases, with the health that is expected."""
    world = PlainCluster()
    seen: list[tuple[str, dict[str, Any]]] = []

    def note(expected: str) -> None:
        assert world.policy is not None
        seen.append((expected, world.policy.to_object()))

    note("Progressing")
    world.rest()
    note("Healthy")
    world.add_log("/ra/a")
    world.wall += 3600
    world.rest()
    note("Healthy")
    world.announce()
    world.rest()
    world.finish(world.only_job())
    world.rest()
    world.wall += 3600
    world.rest()
    note("Healthy")
    world.change_spec(suspend=True)
    note("Progressing")
    world.rest()
    note("Suspended")
    world.change_spec(suspend=False)
    world.problem = TargetProblem("/ra", SegmentReason.ROOT_NOT_FOUND, "/ra does not exist: create it")
    world.rest()
    note("Degraded")
    return seen


@pytest.mark.parametrize(("expected", "found"), policies())
def test_a_policy_in_its_phases(expected: str, found: dict[str, Any]) -> None:
    status, message = health(found)
    assert status == expected
    assert status in SAME[kstatus(found)]
    assert message


def test_what_is_wrong_is_said() -> None:
    assert health(policies()[-1][1])[1] == "RootNotFound: /ra does not exist: create it"


def test_a_job_in_its_states() -> None:
    world = PlainCluster(limits={"maxAttempts": 1})
    world.add_log("/ra/a")
    world.add_log("/ra/b")
    world.settle()
    world.announce()
    world.settle()
    failed, done = sorted(world.jobs)
    before = {health(world.jobs[name].to_object())[0] for name in (failed, done)}
    world.report(failed, outcome="Failed", reason=JobReason.STORE_UNREADABLE)
    world.finish(done)
    world.settle()
    after = [health(world.jobs[name].to_object())[0] for name in (failed, done)]
    assert (before, after) == ({"Progressing"}, ["Degraded", "Healthy"])
