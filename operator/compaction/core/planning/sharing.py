"""One limit for many: what each of those that want something may have of it. Max-min fair, in whole units.

Each member gets what it wants, or as much as the largest share of those that want more (water filling); what cannot be
divided goes to those that stand first in line. Invariants (tests/planning/test_sharing.py):

* Never above the limit: neither the shares together, nor what is held and may be taken besides.
* No member gets nothing while another gets more than one, and none gets more than it wants.
* Work is conserved: something is left only when everybody has what they want.
* A member above its share releases no more than others lack.

Source: D. Bertsekas, R. Gallager, Data Networks (1992), §6.5.2: max-min fair flow control.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class SharedDemand:
    """Units that a member wants in all (including what it holds), and holds now."""

    wants: int
    holds: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """`share` is theirs in fairness. `may_hold` is what they may grow to now, while others hold what is theirs: never
    more than the share, never more than is free. `may_keep` is what a member need not release to others that have less;
    it is not smaller than `may_hold`.
    """

    share: int
    may_hold: int
    may_keep: int


def shares(limit: int, wants: Sequence[int]) -> tuple[int, ...]:
    """The max-min fair share of each, in line order. O(n log n) for n claims, whatever the limit is."""
    left, behind = max(0, limit), len(wants)
    level = 0
    for want in sorted(max(0, one) for one in wants):
        if want * behind > left:
            level = left // behind
            break
        left -= want
        behind -= 1
        level = want
    given = [min(max(0, want), level) for want in wants]
    spare = limit - sum(given)
    for place, want in enumerate(wants):
        if spare <= 0:
            break
        if want > given[place]:
            given[place] += 1
            spare -= 1
    return tuple(given)


def share_out(limit: int, line: Sequence[SharedDemand]) -> tuple[Grant, ...]:
    """What each may have, in line order: shares; what is free to those that stand first; what has to be released by
    those that have too much, the last in line first.
    """
    holds = [claim.holds for claim in line]
    fair = shares(limit, [claim.wants for claim in line])
    held = sum(holds)
    may_hold = [min(pair) for pair in zip(fair, holds, strict=True)]
    lacking = sum(fair) - sum(may_hold)
    free = max(0, limit - held)
    for place in range(len(line)) if lacking else ():
        if free <= 0:
            break
        more = min(free, fair[place] - may_hold[place])
        free -= more
        may_hold[place] += more
    needed = max(0, held + lacking - limit)
    may_keep = [max(pair) for pair in zip(holds, may_hold, strict=True)]
    for place in reversed(range(len(line))):
        if needed <= 0:
            break
        back = min(needed, max(0, holds[place] - fair[place]))
        may_keep[place] -= back
        needed -= back
    return tuple(map(_grant, fair, may_hold, may_keep))


@lru_cache(maxsize=4096)
def _grant(share: int, may_hold: int, may_keep: int) -> Grant:
    """One object for all that may have the same: of a thousand in line most may have nothing."""
    return Grant(share, may_hold, may_keep)
