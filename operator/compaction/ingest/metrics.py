"""What the endpoint counts. Labels are of small, fixed sets: no tenant, no principal, no path."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from compaction.ingest.messages import BlockResult

_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class IngestMetrics:
    """Of one server, in a registry of its own unless one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.requests = Counter(
            "compaction_ingest_requests",
            "Requests answered, by operation and status",
            ["operation", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "compaction_ingest_request_seconds",
            "From the head of a request to its answer",
            ["operation"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.blocks = Counter(
            "compaction_ingest_blocks",
            "Blocks of registrations, by what became of them and why",
            ["outcome", "reason"],
            registry=self.registry,
        )
        self.running = Gauge("compaction_ingest_requests_running", "Requests under way", registry=self.registry)

    def count(self, results: tuple[BlockResult, ...]) -> None:
        """The blocks of one request."""
        for one in results:
            self.blocks.labels(one.outcome.value, one.code.value if one.code else "").inc()
