"""What must hold after any fault: everything ended, once, with the content of before, and nothing is left over."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction.segments.commit import fence
from compaction.segments.generate import generate_log
from support.cluster.by_kubectl import Cluster, Object
from support.processes.operators import OperatorFleet
from support.stores.segment_logs import Content, content, leftovers
from support.time.waiting import eventually

COORDINATOR = "compaction-coordinator"
GROUPS = 6


@dataclass
class Logs:
    """Small logs under one root, and all that was readable in them at the beginning."""

    path: Path
    before: dict[str, Content] = field(default_factory=dict)

    def add(self, name: str, **more: Any) -> Path:
        """A log with one job of 6 groups. It appears under the root at once and complete."""
        making = self.path.with_name(f"{self.path.name}-making")
        shape = {"segments": 8 * GROUPS + 1, "entries_per_segment": 64, "payload_bytes": 64} | more
        generate_log(making, sync=False, **shape)
        self.before[name] = content(making)
        making.rename(self.path / name)
        return self.path / name

    def receipts(self, name: str) -> tuple[Any, ...]:
        return fence.read(self.path / name).receipts

    def assert_content(self) -> None:
        """Everything that was readable is, and nothing else is."""
        for name, before in self.before.items():
            assert content(self.path / name) == before, name

    def assert_compacted_once(self) -> None:
        """Equal content; every group committed by exactly one attempt, and no attempt after a later one had begun."""
        self.assert_content()
        for name in self.before:
            receipts = self.receipts(name)
            assert receipts, name
            assert len({receipt.group for receipt in receipts}) == len(receipts), name
            for job in {receipt.job for receipt in receipts}:
                tokens = [receipt.token for receipt in receipts if receipt.job == job]
                assert tokens == sorted(tokens), f"{name}: a replaced attempt committed: {tokens}"

    def leftovers(self) -> list[str]:
        return [f"{name}/{left}" for name in self.before for left in leftovers(self.path / name)]


def assert_all_done(cluster: Cluster, fleet: OperatorFleet, logs: Logs) -> list[Object]:
    """Wait until everything has ended, then look for what should not be there; the jobs."""
    jobs = cluster.await_all_succeeded(at_least=len(logs.before))
    cluster.await_idle()
    assert {job["spec"]["sources"]["segmentLog"]["path"].rpartition("/")[2] for job in jobs} == set(logs.before)
    logs.assert_compacted_once()
    eventually(lambda: not logs.leftovers(), "what dead attempts left behind to be deleted")
    eventually(lambda: not cluster.leases("job"), "the job Leases to be deleted")
    eventually(lambda: not fleet.running_workers(), "the workers to leave")
    eventually(lambda: not cluster.leases("worker"), "the worker Leases to be deleted")
    strange = {lease["metadata"]["name"] for lease in cluster.list("lease")} - {COORDINATOR}
    assert strange == set()
    return jobs


def lease_of_the_coordinator(cluster: Cluster) -> Object:
    """The election's Lease."""
    [lease] = cluster.list("lease", fields=f"metadata.name={COORDINATOR}")
    return lease


def leader(cluster: Cluster) -> str:
    """Who coordinates; empty when nobody does."""
    return str(lease_of_the_coordinator(cluster)["spec"].get("holderIdentity") or "")
