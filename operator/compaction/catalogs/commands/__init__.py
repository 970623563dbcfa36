"""Commands: each checks its rules against a catalog and says the entries that carry it out
(docs/design/catalogs.md#commands).

Others import `command` for batches, and the modules of commands: `schema_commands`, `zone_commands`, `table_commands`.
"""
