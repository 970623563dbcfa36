"""Claims that the store refused: how long a job waits before its claim is tried again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from compaction.core.reconcile.memory import ClaimProblem, Memory, frozen

CLAIM_PAUSE: Final = 5.0
LONGEST_CLAIM_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a claim was refused, as what the job waits for. `terminal`: its sources are known to be gone."""

    reason: str
    message: str
    terminal: bool = False


def learned(memory: Memory, *, refused: Mapping[str, Refused], claimed: Set[str], now: float) -> Memory:
    """The memory after claims were tried. The pause grows with the age of the problem; `now` is monotonic."""
    claims = {name: problem for name, problem in memory.claims.items() if name not in claimed}
    for name, refusal in refused.items():
        before = claims.get(name)
        since = before.since if before is not None and before.reason == refusal.reason else now
        pause = min(LONGEST_CLAIM_PAUSE, max(CLAIM_PAUSE, now - since))
        claims[name] = ClaimProblem(refusal.reason, refusal.message, since, now + pause, refusal.terminal)
    return replace(memory, claims=frozen(claims))
