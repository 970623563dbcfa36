"""The key-value store of a staging area: repositories, branches, commits, tags and staged changes.

docs/design/staging.md#key-value-store.

`port` is what the rest of the library asks of it; `sql` keeps it in SQLite, or in PostgreSQL in lakeFS's table layout
(`open_key_value_store`).
"""
