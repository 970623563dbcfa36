"""Faults: a process, a disk, a database, a store or a network that fails at one step, or in between."""
