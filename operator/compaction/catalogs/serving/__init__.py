"""The transport of reports of participants of a catalog (docs/design/catalog-compaction.md#protocol): the endpoint that
a participant serves, the client by which a coordinator asks many of them, and the checks of any implementation.

`server` serves a participant from a thread, `client` asks one, or all in a round.
"""
