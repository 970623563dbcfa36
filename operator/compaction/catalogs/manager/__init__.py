"""The manager of a catalog: commands become versions of the log, versions of the log become catalogs and events
(docs/design/catalogs.md#manager).

Others import `manager` for catalogs, `clock` to start one, `events` to listen, `history` for versions, and for
snapshots that keep no column sets without a reader.
"""
