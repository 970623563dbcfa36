"""What the operator exports for Prometheus."""
