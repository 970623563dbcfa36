"""What every endpoint counts. Labels are of small, fixed sets: no tenant, no principal, no path."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class RequestMetrics:
    """Of one server, in a registry of its own unless one is given. `prefix`: of the names of its metrics."""

    def __init__(self, prefix: str, registry: CollectorRegistry | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # see kube/metrics/registry.py
        self.registry = registry or CollectorRegistry()
        self.requests = Counter(
            f"{prefix}_requests",
            "Requests answered, by operation and status",
            ["operation", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            f"{prefix}_request_seconds",
            "From the head of a request to its answer",
            ["operation"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.running = Gauge(f"{prefix}_requests_running", "Requests under way", registry=self.registry)
