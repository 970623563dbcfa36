"""What a reconcile of a catalog decides. Plain data; `catalogs/operator` carries it out: work begins, then the status
is written, then events are published.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.api.catalog.reasons import Ended
from compaction.api.catalog.spec import CatalogCompactionSpec
from compaction.api.catalog.status import CatalogCompactionStatus
from compaction.catalogs.compaction.memory import CatalogMemory
from compaction.catalogs.model.catalog import Catalog
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.observations import Identity


@dataclass(frozen=True, slots=True)
class Ask:
    """Claim the log, then find the participants of `spec` and ask all of them. `least`: the least fencing token.
    `known`: an earlier round has read versions of this log.
    """

    spec: CatalogCompactionSpec
    least: int
    known: bool = False


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the whole history."""

    spec: CatalogCompactionSpec


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """Make `candidate` the snapshot of the log, with the token of the round; `earliest` is the first version before.
    `trim`: without column sets that no retained version uses.
    """

    spec: CatalogCompactionSpec
    candidate: Catalog
    earliest: int
    token: int
    trim: bool = False


@dataclass(frozen=True, slots=True)
class SendMinimum:
    """Send the hybrid timestamp to the participants that were asked in this round."""

    spec: CatalogCompactionSpec
    minimum: int
    token: int


Task = Ask | ReadLog | SaveSnapshot | SendMinimum


@dataclass(frozen=True, slots=True)
class WriteCatalogStatus:
    """Write the status, and when that is done publish what it says for the first time."""

    about: Identity
    status: CatalogCompactionStatus
    events: tuple[Announce, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogDecision:
    """One reconcile's outcome. `memory` replaces the coordinator's memory. `ended`: processes that ended now. `forget`:
    the object is gone, and with it connections and metrics. `round_seconds`: of each round that ended now.
    """

    memory: CatalogMemory
    tasks: tuple[Task, ...] = ()
    status: WriteCatalogStatus | None = None
    requeue_after: float | None = None
    ended: tuple[Ended, ...] = ()
    round_seconds: tuple[float, ...] = ()
    forget: bool = False
