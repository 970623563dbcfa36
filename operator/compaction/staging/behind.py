"""The branches of a scan that are furthest behind, for the status of a policy.

docs/design/staging-areas.md#sensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from compaction.api.policy.status import MAX_BEHIND
from compaction.core.planning.reading import TargetMeasures
from compaction.staging.measures import (
    SEALED_TOKENS,
    SEALED_TOKENS_AFTER,
    STAGED_BYTES,
    STAGED_WRITES,
    TOMBSTONES,
    TOMBSTONES_AFTER,
)
from compaction.staging.sensor import BranchDebt
from compaction.staging.work import target_name

RANKED = (TOMBSTONES, SEALED_TOKENS, STAGED_WRITES)
"""Each makes reads of a branch slower by itself."""


def furthest_behind(
    repository: str, debts: Sequence[BranchDebt], *, merges: bool = False
) -> tuple[TargetMeasures, ...]:
    """At most MAX_BEHIND branches that compaction would change. A branch ranks by the measure in which it comes closest
    to the worst branch, so the worst of each measure is always among them.

    merges: tokens become one (a live lakeFS), whose tombstones may have to stay; otherwise they become the base.
    """
    measured = {debt.name: _measures(debt, merges=merges) for debt in debts if debt.work is not None}
    most = {name: max((one[name] for one in measured.values()), default=0.0) for name in RANKED}

    def rank(branch: str) -> tuple[float, float, str]:
        shares = [measured[branch][name] / most[name] for name in RANKED if most[name]]
        return -max(shares, default=0.0), -sum(shares), branch

    worst = sorted(measured, key=rank)[:MAX_BEHIND]
    return tuple(TargetMeasures(target_name(repository, name), tuple(measured[name].items())) for name in worst)


def _measures(debt: BranchDebt, *, merges: bool) -> dict[str, float]:
    sealed = len(debt.record.sealed_tokens)
    named = len(debt.work.tokens) if debt.work is not None else 0
    return {
        TOMBSTONES: float(debt.counts.tombstones),
        SEALED_TOKENS: float(sealed),
        STAGED_WRITES: float(debt.counts.writes),
        STAGED_BYTES: float(debt.counts.nbytes),
        TOMBSTONES_AFTER: float(debt.counts.tombstones if merges else 0),
        SEALED_TOKENS_AFTER: float(max(0, sealed - named) + merges),
    }
