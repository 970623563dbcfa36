"""Checks of any participant, in whatever language it is written (docs/catalog-participants.md#conformance).

`checks` are those of the protocol, `behavior` those that drive a reference participant, `run` carries them out.
"""
