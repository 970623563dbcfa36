"""What the endpoint of blocks counts. Labels are of small, fixed sets: no tenant, no principal, no path."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from compaction.blocks.serving.messages import BlockResult
from compaction.serving.metrics import RequestMetrics


class IngestMetrics(RequestMetrics):
    """Of one server, in a registry of its own unless one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__("compaction_ingest", registry)
        self.blocks = Counter(
            "compaction_ingest_blocks",
            "Blocks of registrations, by what became of them and why",
            ["outcome", "reason"],
            registry=self.registry,
        )

    def count(self, results: tuple[BlockResult, ...]) -> None:
        """The blocks of one request."""
        for one in results:
            self.blocks.labels(one.outcome.value, one.code.value if one.code else "").inc()
