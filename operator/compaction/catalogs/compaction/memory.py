"""What the coordinator remembers about a catalog between two reconciles. A restart loses the round that runs, and
begins another: nothing of it was decided yet, or the log has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compaction.api.catalog.processes import Processes
from compaction.api.catalog.spec import CatalogReference
from compaction.api.catalog.status import CatalogCompactionStatus
from compaction.catalogs.compaction.round import Round


@dataclass(frozen=True, slots=True)
class CatalogMemory:
    """The round of one catalog.

    `generation`: of the spec that a round was begun for, -1 before one was. `transitions`: of the term that began a
    round, -1 before one did. `watermark`: hybrid timestamp, UNDEFINED until it was moved or read from the status.
    `begun_at`: monotonic seconds, of the round that runs; `ended_at`: of the last one. `round`: what the participants
    said, None while they are asked. `earliest`: first version when the log was read. `status`: what is to be written,
    which outlives a write that met another version; None until something is. `reference`: the log of the last round.
    """

    generation: int = -1
    transitions: int = -1
    processes: Processes = field(default_factory=Processes)
    watermark: int = 0
    begun_at: float = 0.0
    ended_at: float | None = None
    round: Round | None = None
    earliest: int = 0
    status: CatalogCompactionStatus | None = None
    reference: CatalogReference | None = None
