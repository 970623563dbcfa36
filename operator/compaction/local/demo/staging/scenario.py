"""What the demo of staging areas compacts: four branches of one repository, and the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.local.demo.cluster import NAMESPACE, secrets_yaml

POLICY: Final = "staging"
REPOSITORY: Final = "lake"
CREDENTIALS_SECRET: Final = "object-store"  # the name of a Secret
KV_SECRET: Final = "staging-kv"  # the name of a Secret
COMMITTER: Final = "demo"
PURGED: Final = 1_000_000
"""Keys below `logs/` that are deleted before the policy comes; more of them follow."""
WRITE_SECONDS: Final = 20.0
"""So long writers write at least, from the first job on; else until all that goes wrong has been overcome."""
GRACE: Final = "12s"
THRESHOLDS: Final = {"tombstones": 500, "sealedTokens": 4, "stagedWrites": 2000}
COOLDOWN: Final = "5s"


@dataclass(frozen=True, slots=True)
class DemoBranch:
    """A branch and how it is written: a change each `pause` seconds. `purges`: deletes below `logs/`, one after the
    other; `commit_every`: so many changes, 0 never; `deletes`: also deletes, and writes on conditions, for which a
    writer has to read.
    """

    name: str
    pause: float
    purges: bool = False
    commit_every: int = 0
    deletes: bool = True


COMMITTED: Final = DemoBranch("main", pause=0.2, commit_every=10)
CLEANUP: Final = DemoBranch("cleanup", pause=0.25, purges=True)
EXPERIMENT: Final = DemoBranch("experiment", pause=0.1)
DAMAGED: Final = DemoBranch("archive", pause=0.2, deletes=False)
"""The branch of whose ranges one loses bytes in the object store."""
BRANCHES: Final = (COMMITTED, CLEANUP, EXPERIMENT, DAMAGED)


def policy() -> dict[str, Any]:
    """The CompactionPolicy as a document. Small thresholds and short times, so that one can watch all of it."""
    store = {
        "repository": REPOSITORY,
        "kv": {"secretName": KV_SECRET},
        "credentialsSecretName": CREDENTIALS_SECRET,
        "thresholds": THRESHOLDS,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": POLICY_KIND,
        "metadata": {"name": POLICY, "namespace": NAMESPACE},
        "spec": {
            "store": {"stagingArea": store},
            "trigger": {"interval": "3s", "cooldown": COOLDOWN},
            "limits": {"maxConcurrentJobs": 4, "maxAttempts": 2},
            "workers": {"launcher": "process", "max": 1, "slots": 2, "idleSeconds": 60, "sparkMaster": "local[2]"},
            "cleanup": {"delay": GRACE},
            "successfulJobsHistoryLimit": 500,
            "failedJobsHistoryLimit": 500,
        },
    }


def secrets(options: Mapping[str, str], kv_url: str) -> str:
    """The two Secrets as YAML. It is given to kubectl and written nowhere."""
    return secrets_yaml({CREDENTIALS_SECRET: options, KV_SECRET: {"url": kv_url}})
