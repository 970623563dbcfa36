"""The script that Alembic runs for a command: on the connection, and in the transaction, that `schema` hands over."""

from __future__ import annotations

from typing import Final

from alembic import context
from sqlalchemy import Index

from compaction.blocks.index.tables import BLOCKS, JOBS, METADATA, TOMBSTONES

# The indexes of the tables. Apart from them, because their conditions make SQLAlchemy import each dialect with all of
# its drivers: only the code that creates or compares tables needs them.

_LIVE: Final = BLOCKS.c.state == "live"
Index(
    "ix_blocks_live", BLOCKS.c.tenant, BLOCKS.c.max_time, postgresql_where=_LIVE, sqlite_where=_LIVE
)  # what readers ask for, and retention
_WAITS: Final = BLOCKS.c.arrival.is_not(None)
Index("ix_blocks_arrival", BLOCKS.c.arrival, unique=True, postgresql_where=_WAITS, sqlite_where=_WAITS)
_CLAIMED: Final = BLOCKS.c.job.is_not(None)
Index("ix_blocks_job", BLOCKS.c.job, postgresql_where=_CLAIMED, sqlite_where=_CLAIMED)
_DELETED: Final = BLOCKS.c.state == "deleted"
Index("ix_blocks_deleted", BLOCKS.c.changed_at, postgresql_where=_DELETED, sqlite_where=_DELETED)
Index("ix_blocks_version", BLOCKS.c.version)
_ENDED: Final = BLOCKS.c.ended.is_not(None)
Index("ix_blocks_ended", BLOCKS.c.ended, postgresql_where=_ENDED, sqlite_where=_ENDED)
Index("ix_jobs_state", JOBS.c.state, JOBS.c.changed_at)
Index("ix_tombstones_since", TOMBSTONES.c.since)

WITH_INDEXES: Final = METADATA
"""The tables with their indexes."""


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=WITH_INDEXES,
    version_table="block_index_schema",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
