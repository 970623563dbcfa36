"""Everything one reconcile of a catalog reads: a frozen view of the object, of what work in threads has found since the
last reconcile, of the coordinator and of the clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compaction.api.catalog.reasons import Finding, Reason
from compaction.api.catalog.resource import CatalogCompaction
from compaction.catalogs.compaction.memory import CatalogMemory
from compaction.catalogs.compaction.round import Answer, Unanswered
from compaction.catalogs.compaction.work import Work
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager.history import History
from compaction.core.reconcile.observations import Identity, Moment


@dataclass(frozen=True, slots=True)
class Heard:
    """Work ASK has ended. `asked`: names of the participants that were found at `started_at`, a hybrid timestamp.
    `token`: of the round, claimed before; `unclaimed`: why it is not, and nothing may be cut.
    """

    started_at: int
    asked: frozenset[str]
    answers: tuple[Answer, ...]
    unanswered: tuple[Unanswered, ...] = ()
    token: int = 1
    unclaimed: Finding | None = None


@dataclass(frozen=True, slots=True)
class LogRead:
    """Work READ has ended. `read_at`: hybrid timestamp of the coordinator's clock, taken before the log was read."""

    history: History
    read_at: int


@dataclass(frozen=True, slots=True)
class Saved:
    """Work SAVE has ended. `bytes_cut`: of the updates that the snapshot replaced, less its own; 0 when none were."""

    outcome: SnapshotOutcome
    version: int
    bytes_cut: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """Work SEND has ended. `refused`: participants that did not take the minimum, with the reason of each."""

    minimum: int
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """Work has failed as a whole."""

    work: Work
    reason: Reason
    message: str


Result = Heard | LogRead | Saved | Delivered | Broken


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """The picture. `catalog` is None when it does not exist (any more). `transitions`: of the coordinator's Lease in
    this term; `identity`: name of this replica. `results`: of work that ended since the last reconcile, oldest first.
    """

    namespace: str
    name: str
    now: Moment
    catalog: CatalogCompaction | None
    identity: str
    transitions: int
    results: tuple[Result, ...] = ()
    memory: CatalogMemory = field(default_factory=CatalogMemory)

    @property
    def about(self) -> Identity | None:
        """The version of the object that was seen."""
        if self.catalog is None:
            return None
        meta = self.catalog.metadata
        return Identity(meta.name, meta.uid, meta.resource_version)
