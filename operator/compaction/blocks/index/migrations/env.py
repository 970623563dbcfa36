"""The script that Alembic runs for a command: on the connection, and in the transaction, that `schema` hands over."""

from __future__ import annotations

from alembic import context

from compaction.blocks.index.migrations.indexes import WITH_INDEXES

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=WITH_INDEXES,
    version_table="block_index_schema",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
