"""The first schema of the index: blocks, jobs, what waits for deletion."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _key() -> sa.types.TypeEngine[str]:
    """Text that is compared byte by byte, whatever the locale of the server."""
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make all tables."""
    _make_head()
    _make_blocks()
    _index_blocks()
    _make_jobs()
    _make_deletions()


def _make_head() -> None:
    op.create_table(
        "block_index",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("identity", _key(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("arrivals", sa.BigInteger(), nullable=False),
        sa.Column("token_floor", sa.BigInteger(), nullable=False),
        sa.Column("forgotten", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_block_index_one_row"),
        sa.PrimaryKeyConstraint("id", name="pk_block_index"),
    )


def _make_blocks() -> None:
    op.create_table(
        "blocks",
        sa.Column("id", _key(), nullable=False),
        sa.Column("tenant", _key(), nullable=False),
        sa.Column("shard", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("path", _key(), nullable=False),
        sa.Column("min_time", sa.BigInteger(), nullable=False),
        sa.Column("max_time", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", _key(), nullable=False),
        sa.Column("sort_key", sa.Text(), nullable=False),
        sa.Column("schema_id", _key(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("state", _key(), nullable=False),
        sa.Column("arrival", sa.BigInteger(), nullable=True),
        sa.Column("enqueued_at", sa.BigInteger(), nullable=True),
        sa.Column("job", _key(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("added", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("(state = 'live') = (ended IS NULL)", name="ck_blocks_live_until_it_ended"),
        sa.CheckConstraint("state = 'live' OR (arrival IS NULL AND job IS NULL)", name="ck_blocks_only_live_ones_wait"),
        sa.CheckConstraint("state IN ('live', 'tombstoned', 'deleted')", name="ck_blocks_state"),
        sa.CheckConstraint("(arrival IS NULL) = (enqueued_at IS NULL)", name="ck_blocks_in_the_queue_since"),
        sa.CheckConstraint(
            "min_time <= max_time AND rows >= 0 AND bytes >= 0 AND shard >= 0 AND level >= 0", name="ck_blocks_ranges"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_blocks"),
        sa.UniqueConstraint("path", name="uq_blocks_path"),
    )


def _index_blocks() -> None:
    op.create_index(
        "ix_blocks_arrival",
        "blocks",
        ["arrival"],
        unique=True,
        postgresql_where=sa.text("arrival IS NOT NULL"),
        sqlite_where=sa.text("arrival IS NOT NULL"),
    )
    op.create_index(
        "ix_blocks_deleted",
        "blocks",
        ["changed_at"],
        unique=False,
        postgresql_where=sa.text("state = 'deleted'"),
        sqlite_where=sa.text("state = 'deleted'"),
    )
    op.create_index(
        "ix_blocks_job",
        "blocks",
        ["job"],
        unique=False,
        postgresql_where=sa.text("job IS NOT NULL"),
        sqlite_where=sa.text("job IS NOT NULL"),
    )
    op.create_index(
        "ix_blocks_live",
        "blocks",
        ["tenant", "max_time"],
        unique=False,
        postgresql_where=sa.text("state = 'live'"),
        sqlite_where=sa.text("state = 'live'"),
    )
    op.create_index("ix_blocks_version", "blocks", ["version"], unique=False)
    op.create_index(
        "ix_blocks_ended",
        "blocks",
        ["ended"],
        unique=False,
        postgresql_where=sa.text("ended IS NOT NULL"),
        sqlite_where=sa.text("ended IS NOT NULL"),
    )


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job", _key(), nullable=False),
        sa.Column("state", _key(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("tenant", _key(), nullable=False),
        sa.Column("shard", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("output_level", sa.Integer(), nullable=False),
        sa.Column("claim", _key(), nullable=False),
        sa.Column("claim_version", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("arguments", _key(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(state = 'committed') = (receipt IS NOT NULL AND arguments IS NOT NULL)", name="ck_jobs_receipt"
        ),
        sa.CheckConstraint("state IN ('claimed', 'committed', 'retired')", name="ck_jobs_state"),
        sa.PrimaryKeyConstraint("job", name="pk_jobs"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state", "changed_at"], unique=False)
    op.create_table(
        "job_sources",
        sa.Column("job", _key(), nullable=False),
        sa.Column("block", _key(), nullable=False),
        sa.PrimaryKeyConstraint("job", "block", name="pk_job_sources"),
    )


def _make_deletions() -> None:
    op.create_table(
        "tombstones",
        sa.Column("block", _key(), nullable=False),
        sa.Column("reason", _key(), nullable=False),
        sa.Column("job", _key(), nullable=True),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("block", name="pk_tombstones"),
    )
    op.create_index("ix_tombstones_since", "tombstones", ["since"], unique=False)
    op.create_table(
        "quarantine",
        sa.Column("block", _key(), nullable=False),
        sa.Column("reason", _key(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("job", _key(), nullable=True),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("block", name="pk_quarantine"),
    )
    op.create_table(
        "condemned",
        sa.Column("path", _key(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("gone_at", sa.BigInteger(), nullable=True),
        sa.Column("gone_version", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("path", name="pk_condemned"),
    )
