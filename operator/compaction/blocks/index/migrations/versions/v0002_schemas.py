"""The schemas of blocks, so that planning knows which of them can be merged; from registrations and from footers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table; blocks that are there already have an id of their schema, and its content is learnt later."""
    op.create_table(
        "schemas",
        sa.Column("schema_id", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("schema_id", name="pk_schemas"),
    )
