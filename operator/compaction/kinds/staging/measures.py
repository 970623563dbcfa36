"""What is measured of branches: for the whole store, and for each candidate. Nothing heavy is imported here."""

from __future__ import annotations

from typing import Final

TOMBSTONES: Final = "tombstones"
SEALED_TOKENS: Final = "sealedTokens"
STAGED_WRITES: Final = "stagedWrites"
STAGED_BYTES: Final = "stagedBytes"
BRANCHES: Final = "branches"
MOST_TOMBSTONES: Final = "branchTombstones"
MOST_SEALED_TOKENS: Final = "branchSealedTokens"

AGE_REACHED: Final = "ageReached"
"""Of a candidate alone: 1 when the last compaction of its branch began longer ago than the threshold."""
