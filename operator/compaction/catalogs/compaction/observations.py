"""The picture that one reconcile of a catalog reads, its memory, and the actions it may decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec, CatalogReference
from compaction.api.catalog.reasons import Ended, Finding, Processes, Reason
from compaction.catalogs.compaction.round import ParticipantAnswer, Pin, Round, Unanswered
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager.history import CatalogHistory
from compaction.catalogs.model.catalog import Catalog
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.observations import Hold, Moment, OperatorIdentity

# Work of a round outside of the coordinator, each piece in a thread of its own.


class RoundWork(StrEnum):
    """One kind of work; a catalog has each at most once at a time."""

    ASK = "ask"
    """Claim the log, then find the participants and ask all of them."""
    READ = "read"
    """Read the log, after the last answer."""
    SAVE = "save"
    """Save a snapshot with the token of the round."""
    SEND = "send"
    """Send the minimum to all participants."""
    PREVIEW = "preview"
    """Ask the participants and read the log for a preview: nothing is claimed, cut or sent."""


# The coordinator's memory of a catalog between two reconciles. A restart loses the round that runs, and begins another:
# nothing of it was decided yet, or the log has it.


@dataclass(frozen=True, slots=True)
class CatalogMemory:
    """The round of one catalog.

    `generation`: of the spec that a round was begun for, -1 before one was. `transitions`: of the term that began a
    round, -1 before one did. `watermark`: hybrid timestamp, UNDEFINED until it was moved or read from the status.
    `begun_at`: monotonic seconds, of the round that runs; `ended_at`: of the last one. `round`: what the participants
    said, None while they are asked. `earliest`: first version when the log was read. `status`: what is to be written,
    which outlives a write that met another version; None until something is. `reference`: the log of the last round.
    `requests`: values of the requests (run now, scan) that have begun a round, or are remembered for the next;
    `answering` those that the round that runs will answer. `figures_only`: it was begun by a scan, and cuts nothing.
    `cut_before`: versions and bytes that were cut in all when it began. `preview`: what is asked for a preview now.
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
    requests: tuple[str, str] = ("", "")
    answering: tuple[str, str] = ("", "")
    figures_only: bool = False
    cut_before: tuple[int, int] = (0, 0)
    preview: PreviewRound | None = None


# The decision of a reconcile of a catalog. Plain data; `catalogs/operator` carries it out: work begins, then the status
# is written, then events are published.


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


@dataclass(frozen=True, slots=True)
class PreviewRound:
    """Ask the participants, read the log, and decide with both specs, which name the same of either. `watermarks`: the
    low watermark of a round with each. `mark` and `generation`: of the request, and of the spec in force.
    """

    spec: CatalogCompactionSpec
    proposed: CatalogCompactionSpec
    watermarks: tuple[int, int]
    mark: str
    generation: int


Task = Ask | ReadLog | SaveSnapshot | SendMinimum | PreviewRound


@dataclass(frozen=True, slots=True)
class WriteCatalogStatus:
    """Write the status, and when that is done publish what it says for the first time."""

    about: OperatorIdentity
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


# Everything one reconcile of a catalog reads: a frozen view of the object, of what work in threads has found since
# the last reconcile, of the coordinator and of the clocks.


@dataclass(frozen=True, slots=True)
class Heard:
    """Work ASK has ended. `asked`: names of the participants that were found at `started_at`, a hybrid timestamp.
    `token`: of the round, claimed before; `unclaimed`: why it is not, and nothing may be cut.
    """

    started_at: int
    asked: frozenset[str]
    answers: tuple[ParticipantAnswer, ...]
    unanswered: tuple[Unanswered, ...] = ()
    token: int = 1
    unclaimed: Finding | None = None


@dataclass(frozen=True, slots=True)
class LogRead:
    """Work READ has ended. `read_at`: hybrid timestamp of the coordinator's clock, taken before the log was read."""

    history: CatalogHistory
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
class CutForecast:
    """How an attempt to cut history would end. `earliest` and `latest`: versions that the log would have; `versions`,
    `bytes`: that would be cut.
    """

    finding: Finding
    pin: Pin | None
    earliest: int
    latest: int
    versions: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Work PREVIEW has ended. `asked` and `answered`: numbers of participants."""

    asked: int
    answered: int
    in_force: CutForecast
    proposed: CutForecast


@dataclass(frozen=True, slots=True)
class Broken:
    """Work has failed as a whole."""

    work: RoundWork
    reason: Reason
    message: str


Result = Heard | LogRead | Saved | Delivered | Forecast | Broken


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """The picture. `catalog` is None when it does not exist (any more). `transitions`: of the coordinator's Lease in
    this term; `identity`: name of this replica. `results`: of work that ended since the last reconcile, oldest first.
    `hold`: the operator's.
    """

    namespace: str
    name: str
    now: Moment
    catalog: CatalogCompaction | None
    identity: str
    transitions: int
    results: tuple[Result, ...] = ()
    memory: CatalogMemory = field(default_factory=CatalogMemory)
    hold: Hold | None = None

    @property
    def about(self) -> OperatorIdentity | None:
        """The version of the object that was seen."""
        if self.catalog is None:
            return None
        meta = self.catalog.metadata
        return OperatorIdentity(meta.name, meta.uid, meta.resource_version)
