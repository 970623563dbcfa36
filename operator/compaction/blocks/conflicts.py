"""Blocks that lie in the same windows of time and are not merged with one another because of their schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_COLUMNS: Final = 3
"""Columns that a message names."""


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """Of one tenant.

    schemas: how many kinds there are, each of which is merged by itself.
    columns: the columns whose types have no common one, in words; empty when nothing tells what some schemas hold.
    alone: blocks that would be merged, were it not for their schemas.
    """

    tenant: str
    schemas: int
    columns: tuple[str, ...]
    blocks: int
    alone: int = 0

    def __str__(self) -> str:
        named, more = "; ".join(self.columns[:MOST_COLUMNS]), len(self.columns) - MOST_COLUMNS
        why = f"{named}{f'; {more} more' * (more > 0)}" or "footers that say what they hold cannot be read"
        return f"{self.schemas} schemas of `{self.tenant}` cannot be merged: {why}"
