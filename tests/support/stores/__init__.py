"""Stores: segment logs with their owners, block stores with index and objects, filled, and what must hold."""
