"""Stores: the contract of an adapter, and for each kind of store a library of its own."""
