"""What the demo of block stores compacts: three tenants, one of them noisy, and the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.local.demo.cluster import NAMESPACE, secrets_yaml

POLICY: Final = "blocks"
CREDENTIALS_SECRET: Final = "object-store"  # the name of a Secret
INDEX_SECRET: Final = "block-index"  # the name of a Secret
LEVELS: Final = ((20, "5s"), (8, "8s"), (4, "10s"))
TOP_LEVEL: Final = len(LEVELS)
"""What has come so far is not merged any more."""
SPAN_HOURS: Final = 3
"""Width of a window: only blocks of one window are merged, and a run may fall into two of them."""
GRACE: Final = "12s"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A writer of blocks: one each `pause` seconds, of `rows` rows each; `backlog` of them before the policy comes."""

    name: str
    pause: float
    rows: int
    backlog: int


NOISY: Final = Tenant("noisy", pause=0.4, rows=3000, backlog=100)
QUIET: Final = Tenant("acme", pause=1.5, rows=3000, backlog=20)
DAMAGED: Final = Tenant("globex", pause=1.5, rows=3000, backlog=20)
"""The tenant of whose blocks one loses bytes in the store."""
TENANTS: Final = (NOISY, QUIET, DAMAGED)
SHARD: Final = 0
DAMAGED_BLOCK: Final = 5
"""Which of the backlog, so that it has siblings on both sides."""
WRITE_SECONDS: Final = 20.0
"""So long writers write at least, from the first job on; else until the killed worker is replaced."""


def policy(url: str) -> dict[str, Any]:
    """The CompactionPolicy as a document. Small levels and short times, so that one can watch all of it."""
    store = {
        "url": url,
        "credentialsSecretName": CREDENTIALS_SECRET,
        "index": {"secretName": INDEX_SECRET},
        "levels": [{"maxBlocks": blocks, "maxAge": age} for blocks, age in LEVELS],
        "span": f"{SPAN_HOURS}h",
        "mergeMemory": "256Mi",
    }
    return {
        "apiVersion": API_VERSION,
        "kind": POLICY_KIND,
        "metadata": {"name": POLICY, "namespace": NAMESPACE},
        "spec": {
            "store": {"blockStore": store},
            "trigger": {"interval": "3s"},
            "limits": {"maxConcurrentJobs": 4},
            "workers": {"launcher": "process", "max": 1, "slots": 2, "idleSeconds": 60, "sparkMaster": "local[2]"},
            "cleanup": {"delay": GRACE},
            "successfulJobsHistoryLimit": 500,
            "failedJobsHistoryLimit": 500,
        },
    }


def secrets(options: Mapping[str, str], index_url: str) -> str:
    """The two Secrets as YAML. It is given to kubectl and written nowhere."""
    return secrets_yaml({CREDENTIALS_SECRET: options, INDEX_SECRET: {"url": index_url}})
