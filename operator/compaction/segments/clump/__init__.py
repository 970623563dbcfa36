"""Live entries that are written again side by side at the head of a log: phase 4, on request."""
