"""One limit for many: what each of those that want something may have of it. Max-min fair, in whole units.

Everybody gets what they want, or as much as whoever gets most of those that want more (water filling); what cannot be
divided goes to those that stand first in line. Invariants (tests/planning/test_sharing.py):

* Never above the limit: neither the shares together, nor what is held and may be taken besides.
* Nobody gets nothing while another gets more than one, and nobody gets more than they want.
* Work is conserved: something is left only when everybody has what they want.
* Who holds more than their share gives back no more than others lack.

Source: D. Bertsekas, R. Gallager, Data Networks (1992), §6.5.2: max-min fair flow control.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """Units that somebody wants in all (what they hold included), and holds now."""

    wants: int
    holds: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """`share` is theirs in fairness. `may_hold` is what they may grow to now, while others hold what is theirs: never
    more than the share, never more than is free. `may_keep` is what they need not give back to others that have less;
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


def share_out(limit: int, line: Sequence[Claim]) -> tuple[Grant, ...]:
    """What each may have, in line order: shares; what is free to those that stand first; what has to be given back by
    those that have too much, the last in line first.
    """
    fair = shares(limit, [claim.wants for claim in line])
    held = sum(claim.holds for claim in line)
    lacking = sum(max(0, share - claim.holds) for share, claim in zip(fair, line, strict=True))
    free = max(0, limit - held)
    may_hold: list[int] = []
    for share, claim in zip(fair, line, strict=True):
        more = min(free, max(0, share - claim.holds))
        free -= more
        may_hold.append(min(share, claim.holds + more))
    needed = max(0, held + lacking - limit)
    may_keep = [max(claim.holds, most) for claim, most in zip(line, may_hold, strict=True)]
    for place in reversed(range(len(line))):
        back = min(needed, max(0, line[place].holds - fair[place]))
        may_keep[place] -= back
        needed -= back
    return tuple(Grant(*one) for one in zip(fair, may_hold, may_keep, strict=True))
