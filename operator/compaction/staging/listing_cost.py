"""What reads of the branches that are furthest behind cost, now and after compaction, in sentences.

docs/design/staging-areas.md#sensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.staging.measures import SEALED_TOKENS, SEALED_TOKENS_AFTER, STAGED_WRITES, TOMBSTONES, TOMBSTONES_AFTER
from compaction.staging.work import branch_of_target

if TYPE_CHECKING:
    from compaction.api.policy.resource import DebtStatus, TargetDebtStatus  # they need cronsim, see `kind`


def listing_costs(debt: DebtStatus) -> tuple[str, ...]:
    """One sentence per branch that the status names, the worst first; none when it names none."""
    return tuple(_cost(one) for one in debt.behind)


def _cost(target: TargetDebtStatus) -> str:
    """`Listing `main/` steps over 999,999 tombstones; 0 after compaction. It asks 12 sealed tokens; 0 after
    compaction. 1,200,000 writes are staged.`
    """
    tombstones, left = target.measure(TOMBSTONES), target.measure(TOMBSTONES_AFTER)
    tokens, tokens_left = target.measure(SEALED_TOKENS), target.measure(SEALED_TOKENS_AFTER)
    writes = int(target.measure(STAGED_WRITES))
    at_most = "at most " if left else ""
    return (
        f"Listing `{branch_of_target(target.target)}/` steps over {_counted(tombstones, 'tombstone')}; "
        f"{at_most}{left:,.0f} after compaction. It asks {_counted(tokens, 'sealed token')}; {tokens_left:,.0f} after "
        f"compaction. {_counted(writes, 'write')} {'is' if writes == 1 else 'are'} staged."
    )


def _counted(amount: float, noun: str) -> str:
    return f"{amount:,.0f} {noun if amount == 1 else noun + 's'}"
