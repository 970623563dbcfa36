"""The figures of a store in its policy's status: its debt, by level and tenant, the kind's measures, and conflicts."""

from __future__ import annotations

from typing import Any

from compaction.api.policy.resource import (
    DebtStatus,
    LevelDebtStatus,
    MeasureStatus,
    SourceConflict,
    TargetDebtStatus,
    TenantDebtStatus,
)
from compaction.core.kind import Kind
from compaction.core.planning.debt import Debt
from compaction.core.planning.reading import ScanResult


def store_figures(debt: Debt, scan: ScanResult, kind: Kind) -> dict[str, Any]:
    """The members `debt` and `conflicts` of the status. Of tenants, those with the most debt are kept (MAX_TENANTS)."""
    tenants = debt.tenants if kind.has_tenants else ()
    return {
        "debt": DebtStatus(
            bytes=debt.bytes,
            sources=debt.sources,
            targets=debt.targets,
            measures=tuple(
                MeasureStatus(name=one.name, value=scan.measures[one.name])
                for one in kind.measures
                if one.name in scan.measures
            ),
            behind=tuple(
                TargetDebtStatus(
                    target=one.target,
                    measures=tuple(MeasureStatus(name=name, value=value) for name, value in one.measures),
                )
                for one in scan.behind
            ),
            levels=tuple(LevelDebtStatus(level=one.level, bytes=one.bytes, sources=one.sources) for one in debt.levels),
            tenants=tuple(TenantDebtStatus(tenant=one.tenant, bytes=one.bytes, sources=one.sources) for one in tenants),
        ),
        "conflicts": tuple(
            SourceConflict(tenant=one.tenant, classes=one.classes, sources=one.sources, message=one.message)
            for one in scan.conflicts
        ),
    }
