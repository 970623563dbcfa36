"""Scans and sweeps of stores in threads, and what a policy at rest waits for."""
