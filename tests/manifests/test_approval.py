"""Four eyes on a real API server: with components/approval editors cannot approve and approvers cannot edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cluster.control_plane import ControlPlane
from support.cluster.rendered import NAMESPACED, ROOT, with_components
from support.time.waiting import eventually

pytestmark = pytest.mark.apiserver

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


def test_who_writes_a_policy_does_not_approve_its_plans(empty_plane: ControlPlane, tmp_path: Path) -> None:
    kubectl = empty_plane.kubectl
    kubectl("apply", "--server-side", "-k", str(with_components(tmp_path / "mine", NAMESPACED, "approval")))
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
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

    # The API server takes a moment to see a new admission policy.
    eventually(
        lambda: "may approve a plan" in attempt("editor", *approve, "compaction.dev/approve=a1"),
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
