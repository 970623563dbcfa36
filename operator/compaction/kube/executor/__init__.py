"""Decisions carried out: every write of the coordinator, in the order that makes a crash harmless."""
