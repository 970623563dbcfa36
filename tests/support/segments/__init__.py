"""Segment logs with their owners, filled, and what must hold."""
