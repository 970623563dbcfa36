"""The API server as a user of the command line sees it: kubectl, and nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from compaction.api.job.resource import CompactionJob
from compaction.api.names import ANNOTATION_USED_BY, CATALOG_KIND, COORDINATOR_LEASE, JOB_KIND, POLICY_KIND
from compaction.api.policy.resource import CompactionPolicy
from compaction.local.errors import DemoError

NAMESPACE: Final = "compaction-demo"
EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def secrets_yaml(secrets: Mapping[str, Mapping[str, str]]) -> str:
    """Secrets by name as YAML. It is given to kubectl and written nowhere."""
    return str(
        yaml.safe_dump_all(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "annotations": {ANNOTATION_USED_BY: f"{POLICY_KIND}/*, {CATALOG_KIND}/*"},
                },
                "stringData": dict(data),
            }
            for name, data in secrets.items()
        )
    )


@dataclass(frozen=True, slots=True)
class DemoObservation:
    """One reading of the cluster: the policy (None before it exists), its jobs by age, and who leads."""

    policy: CompactionPolicy | None
    jobs: tuple[CompactionJob, ...]
    leader: str | None


@dataclass(frozen=True, slots=True)
class DemoCluster:
    """kubectl with a kubeconfig, in the demo's namespace, where there is one policy, or one catalog. `resources`: what
    a user lists at the end, the one that was applied first.
    """

    kubectl: Path
    kubeconfig: Path
    policy: str
    resources: str = "cpol,cjob,lease"

    def run(self, *arguments: str, check: bool = True, input: str | None = None) -> str:
        """Run kubectl and return what it printed.

        Raises:
            DemoError: it failed (with `check`); carries kubectl's own words.
        """
        command = [str(self.kubectl), f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, input=input)
        if check and answer.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)} failed: {answer.stderr.strip() or answer.stdout.strip()}")
        return answer.stdout

    def look(self) -> DemoObservation:
        """Policy, jobs and coordinator Lease in one request each, by one kubectl."""
        items: Sequence[dict[str, Any]] = json.loads(self.run("get", "cpol,cjob,lease", "-o", "json"))["items"]
        policies = [CompactionPolicy.from_object(item) for item in items if item["kind"] == POLICY_KIND]
        jobs = [CompactionJob.from_object(item) for item in items if item["kind"] == JOB_KIND]
        holders = [
            item["spec"].get("holderIdentity")
            for item in items
            if item["kind"] == "Lease" and item["metadata"]["name"] == COORDINATOR_LEASE
        ]
        return DemoObservation(
            policy=next((policy for policy in policies if policy.metadata.name == self.policy), None),
            jobs=tuple(sorted(jobs, key=lambda job: (job.metadata.creation_timestamp or EARLIEST, job.metadata.name))),
            leader=(holders[0] or None) if holders else None,
        )
