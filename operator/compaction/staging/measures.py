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

TOMBSTONES_AFTER: Final = "tombstonesAfter"
SEALED_TOKENS_AFTER: Final = "sealedTokensAfter"
"""Of a branch that is behind: what compaction would leave; of tombstones under a live lakeFS, at most."""
RANGES: Final = "ranges"
"""Of a receipt alone: ranges that the changes touched, and those written instead."""

AGE_REACHED: Final = "ageReached"
"""Of a candidate alone: 1 when the last compaction of its branch began longer ago than the threshold."""
