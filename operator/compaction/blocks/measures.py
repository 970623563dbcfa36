"""What a block store measures besides its debt. The room of the store reads them; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from compaction.core.planning.candidates import Candidate
from compaction.core.planning.reading import UnofferedDebt

LIVE: Final = "liveBlocks"
WINDOWS: Final = "windows"
READS: Final = "readAmplification"
READS_AFTER: Final = "readAmplificationAfter"


def measures_of(
    *, live: int, windows: int, candidates: Iterable[Candidate], beyond: Iterable[UnofferedDebt] = ()
) -> Mapping[str, float]:
    """The measures of a scan.

    Args:
        live: blocks that a reader of everything would open.
        windows: combinations of tenant, shard and window of time that have any: a query about one of them opens
            `live / windows` blocks on average.
        candidates, beyond: the debt. Of each batch one block is left.
    """
    fewer = sum(one.debt_sources - 1 for one in candidates if not one.is_empty)
    fewer += sum(one.sources - one.targets for one in beyond)
    return {
        LIVE: live,
        WINDOWS: windows,
        READS: read_amplification(live, windows),
        READS_AFTER: read_amplification(live - fewer, windows),
    }


def read_amplification(blocks: int, windows: int) -> float:
    """Blocks that a query about one tenant, shard and window opens on average; at least one, 0 in an empty store."""
    return round(max(1.0, blocks / windows), 2) if windows else 0.0
