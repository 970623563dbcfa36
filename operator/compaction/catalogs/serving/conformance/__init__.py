"""Checks of any participant, in whatever language it is written (docs/catalog-participants.md#conformance).

`checks` are those of the protocol; `run` has those that drive a reference participant, and carries all of them out.
"""
