"""Which faults a schedule injects: a pure function of the seed and of the moment's name, as far as they are allowed.

Every moment at which something may go wrong has a name that does not depend on the faults elsewhere
(`worker-2/api/17`), and its own dice. So a fault can be left out and the others still strike where they did: that is
what shrinking needs.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Faults:
    """`allowed`: names of the only faults that may strike, None for all. `struck`: those that did, in order.

    `active` False: peace.
    """

    seed: int
    allowed: frozenset[str] | None = None
    struck: list[str] = field(default_factory=list)
    active: bool = True

    def dice(self, name: str) -> random.Random:
        """The dice of a moment."""
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "big"))

    def chance(self, name: str, probability: float) -> bool:
        """Whether the fault of this name strikes."""
        if not self.active or probability <= 0 or self.dice(name).random() >= probability:
            return False
        return self.strikes(name)

    def choose(self, name: str, odds: Mapping[str, float]) -> str | None:
        """Which of several faults strikes at this moment, if any."""
        if not self.active:
            return None
        roll = self.dice(name).random()
        for kind, probability in odds.items():
            roll -= probability
            if roll < 0:
                return kind if self.strikes(f"{name}:{kind}") else None
        return None

    def strikes(self, name: str) -> bool:
        """A fault that was planned: it strikes if it is allowed to."""
        if self.allowed is not None and name not in self.allowed:
            return False
        self.struck.append(name)
        return True
