"""The holder of the claim of a job that no cluster leads: the process, and its last sign of life."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def _key() -> sa.types.TypeEngine[str]:
    """Text that is compared byte by byte, whatever the locale of the server."""
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Existing claims have no known holder, as those of a cluster."""
    op.create_table(
        "holders",
        sa.Column("holder", _key(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("place", _key(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("started", _key(), nullable=False),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.Column("renewed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("holder", name="pk_holders"),
    )
    op.add_column("jobs", sa.Column("holder", _key(), nullable=True))
