"""The figures of a store in its policy's status: its debt, by level and tenant; and what a block store holds."""

from __future__ import annotations

from typing import Any

from compaction.api.policy import BlocksStatus, DebtStatus, LevelDebt, SchemaConflict, TenantDebt
from compaction.planning.debt import Debt
from compaction.planning.reading import BlockFigures


def store_figures(debt: Debt, blocks: BlockFigures | None) -> dict[str, Any]:
    """The members `debt` and `blocks` of the status. Of tenants, those with the most debt are kept (MAX_TENANTS)."""
    levels = tuple(
        LevelDebt(level=one.level, bytes=one.bytes, segments=one.segments, blocks=one.blocks) for one in debt.levels
    )
    tenants = tuple(TenantDebt(tenant=one.tenant, bytes=one.bytes, blocks=one.blocks) for one in debt.tenants)
    return {
        "debt": DebtStatus(
            bytes=debt.bytes,
            segments=debt.segments,
            blocks=debt.blocks,
            logs=debt.logs,
            levels=levels,
            tenants=tenants,
        ),
        "blocks": None if blocks is None else _held(debt, blocks),
    }


def _held(debt: Debt, blocks: BlockFigures) -> BlocksStatus:
    return BlocksStatus(
        live=blocks.live,
        windows=blocks.windows,
        read_amplification=read_amplification(blocks),
        read_amplification_after=read_amplification(blocks, fewer=debt.surplus),
        schema_conflicts=tuple(
            SchemaConflict(tenant=one.tenant, schemas=one.schemas, blocks=one.blocks, message=str(one))
            for one in blocks.conflicts
        ),
    )


def read_amplification(blocks: BlockFigures, *, fewer: int = 0) -> float:
    """Blocks that a query about one tenant, shard and window opens on average, if there were so many fewer; at least
    one, and 0 in an empty store.
    """
    if not blocks.windows:
        return 0.0
    return round(max(1.0, (blocks.live - fewer) / blocks.windows), 2)
