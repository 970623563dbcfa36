"""From a schedule that violates something to the few faults that are enough for it (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable

from simulation.invariants import Invariant
from simulation.world import Outcome, simulate

LIMIT = 300
"""Schedules that shrinking may cost."""


def shrink(outcome: Outcome, *, limit: int = LIMIT) -> Outcome:
    """A schedule of the same seed with as few faults as possible that violates the same invariant."""
    assert outcome.violation is not None, "only what fails can be shrunk"
    wanted = outcome.violation.invariant
    best = [outcome]

    def fails(faults: list[str]) -> bool:
        found = simulate(outcome.seed, allowed=frozenset(faults))
        if found.violation is None or found.violation.invariant is not wanted:
            return False
        best[0] = found
        return True

    ddmin(list(dict.fromkeys(outcome.struck)), fails, limit=limit)
    return best[0]


def ddmin(items: list[str], fails: Callable[[list[str]], bool], *, limit: int) -> list[str]:
    """A small part of `items` for which `fails` still holds; at most `limit` questions are asked."""
    parts, asked = 2, 0
    while items and asked < limit:
        size = max(1, len(items) // parts)
        chunks = [items[at : at + size] for at in range(0, len(items), size)]
        for chunk in chunks:
            rest = [item for item in items if item not in chunk]
            asked += 1
            if fails(rest):
                items, parts = rest, max(parts - 1, 2)
                break
            if asked >= limit:
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(items))
    return items


def told(outcome: Outcome, *, lines: int = 400) -> str:
    """A failing schedule for people: the end of its trace, what was violated, by which faults, and how to replay it."""
    assert outcome.violation is not None, "nothing was violated"
    violation: Invariant = outcome.violation.invariant
    cut = len(outcome.trace) - lines
    return "\n".join(
        [
            *([f"... {cut} lines before ..."] if cut > 0 else []),
            *outcome.trace[-lines:],
            "",
            f"seed {outcome.seed} violates: {violation}",
            f"  {outcome.violation.message}",
            f"  {len(outcome.struck)} faults: {', '.join(outcome.struck) or 'none'}",
            f"  replay and shrink it: make simulate SEED={outcome.seed}",
        ]
    )
