"""One claim of a demonstration, and what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, whether it holds, and the fact that shows it."""

    claim: str
    holds: bool
    fact: str
