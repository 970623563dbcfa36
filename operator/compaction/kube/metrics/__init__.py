"""The metrics that the operator exports for Prometheus."""
