"""The work of rounds: carries out what a decision asks for, and gives every failure a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import Finding, Reason
from compaction.catalogs.codec.codec import encode
from compaction.catalogs.compaction.deciding import Cut, cut
from compaction.catalogs.compaction.observations import (
    Ask,
    Broken,
    CutForecast,
    Delivered,
    Forecast,
    Heard,
    LogRead,
    PreviewRound,
    ReadLog,
    Result,
    RoundWork,
    Saved,
    SaveSnapshot,
    SendMinimum,
    Task,
)
from compaction.catalogs.compaction.preview import forecast
from compaction.catalogs.compaction.round import ParticipantAnswer, Unanswered, history_of
from compaction.catalogs.errors import (
    CatalogError,
    CatalogLogAccessError,
    CatalogLogError,
    CatalogLogFullError,
    CatalogLogLimitError,
    CatalogLogRewoundError,
    CatalogValueError,
    CorruptCatalogLogError,
    CorruptCatalogValueError,
    InapplicableEntryError,
    ParticipantConfigError,
    UnsupportedCatalogValueError,
)
from compaction.catalogs.log.port import LogEvent, SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.history import trimmed
from compaction.catalogs.model.entries import Snapshot
from compaction.catalogs.serving.client import ParticipantAddress
from compaction.errors import ApiError, ForbiddenError
from compaction.kube.informer.cache import CacheKey
from compaction.serving.errors import OwnTokenError
from compaction.storage.errors import SecretError, SecretForbiddenError

# Connections of the controller of catalogs: participants over HTTP and a log in etcd, or both in one process.

Secret = Mapping[str, str]
"""Texts of a Secret by key."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of the Secrets of a spec: of the log, empty without one; of the participants, "" without a token."""

    log: Secret = field(repr=False)
    token: str = field(repr=False)
    authority: str = field(default="", repr=False)
    """Certificates in PEM that participants are checked against; the system's when empty."""


class Places(Protocol):
    """The addresses of the participants of a catalog, and the Secrets that its spec names; read at each call."""

    async def participants(self, namespace: str, spec: CatalogCompactionSpec) -> tuple[ParticipantAddress, ...]:
        """Addresses of all participants that can run, by name. Raises ApiError."""
        ...

    async def credentials(self, key: CacheKey, spec: CatalogCompactionSpec) -> Credentials:
        """Read the Secrets of a catalog that its spec names. Raises SecretError naming the Secret and the key,
        ApiError.
        """
        ...


class Participants(Protocol):
    """Asks participants, all at once. Raises ParticipantConfigError for addresses that cannot be asked."""

    async def ask(
        self, spec: CatalogCompactionSpec, addresses: Sequence[ParticipantAddress], credentials: Credentials
    ) -> tuple[tuple[ParticipantAnswer, ...], tuple[Unanswered, ...]]:
        """Every participant is in one of the two."""
        ...

    async def send(
        self,
        spec: CatalogCompactionSpec,
        addresses: Sequence[ParticipantAddress],
        credentials: Credentials,
        minimum: int,
        token: int,
    ) -> tuple[tuple[str, str], ...]:
        """Names of the participants that did not take the minimum, each with the reason."""
        ...


class Logs(Protocol):
    """Opens logs; every call is made in a thread."""

    def open(self, spec: CatalogCompactionSpec, credentials: Credentials) -> UpdateLog:
        """The log of a catalog. Raises CatalogError."""
        ...


# The reason for each error of a round's work.

_REASONS: Final[tuple[tuple[Reason, tuple[type[CatalogError], ...]], ...]] = (
    (
        Reason.LOG_CORRUPT,
        (
            CorruptCatalogLogError,
            CorruptCatalogValueError,
            InapplicableEntryError,
            UnsupportedCatalogValueError,
            CatalogLogRewoundError,
        ),
    ),
    (Reason.NO_SPACE, (CatalogLogFullError,)),
    (Reason.SNAPSHOT_REFUSED, (CatalogLogLimitError, CatalogValueError)),
    (Reason.PERMISSION_DENIED, (CatalogLogAccessError,)),
)


def reason_of(error: CatalogError) -> Reason:
    """LOG_UNAVAILABLE for what another round may find repaired."""
    return next((reason for reason, kinds in _REASONS if isinstance(error, kinds)), Reason.LOG_UNAVAILABLE)


def failure_of(error: CatalogError | SecretError | OwnTokenError | ApiError) -> Finding:
    """Return the finding with which a process ends that met the error."""
    match error:
        case SecretForbiddenError():
            return Finding(Reason.PERMISSION_DENIED, str(error))
        case SecretError():
            return Finding(Reason.SECRET_MISSING, str(error))
        case OwnTokenError():
            return Finding(Reason.PERMISSION_DENIED, str(error))
        case ForbiddenError():
            return Finding(Reason.PERMISSION_DENIED, f"the operator's account may not: {error}")
        case ApiError():
            return Finding(Reason.PARTICIPANTS_UNKNOWN, f"the API server does not list the participants: {error}")
        case ParticipantConfigError():
            return Finding(Reason.ANSWER_REFUSED, str(error))
        case _:
            return Finding(reason_of(error), str(error))


# The work of rounds: what a decision asks for is done, and every failure has a reason.
#
# The loop is never blocked: the log is read and written in threads, a few at a time. A thread cannot be cancelled;
# what it does after its coordinator has lost the lease is fenced by the token.

T = TypeVar("T")
LOG_THREADS: Final = 4
"""Logs that are read or written at a time, of all catalogs."""
_NOT_LEADING: Final = "this replica does not lead any more"


@dataclass(slots=True)
class RoundState:
    """The state that the work of one round leaves to the next: `addresses` that were asked, `events` of the log."""

    addresses: tuple[ParticipantAddress, ...] = ()
    events: tuple[LogEvent, ...] = field(default=(), repr=False)


def work_of(task: Task) -> RoundWork:
    """Return the kind of work that a task is."""
    match task:
        case Ask():
            return RoundWork.ASK
        case ReadLog():
            return RoundWork.READ
        case SaveSnapshot():
            return RoundWork.SAVE
        case SendMinimum():
            return RoundWork.SEND
        case PreviewRound():
            return RoundWork.PREVIEW


class CatalogWork:
    """Does tasks of many catalogs. `clock`: hybrid timestamps; `is_leader` is asked before anything is written."""

    def __init__(
        self,
        places: Places,
        *,
        logs: Logs,
        participants: Participants,
        clock: Callable[[], int],
        is_leader: Callable[[], bool],
    ) -> None:
        self._places = places
        self._logs = logs
        self._participants = participants
        self._clock = clock
        self._is_leader = is_leader
        self._threads = asyncio.Semaphore(LOG_THREADS)

    async def do(self, key: CacheKey, state: RoundState, task: Task) -> Result:
        """The result of a task; a failure that is expected is a result too."""
        work = work_of(task)
        try:
            return await self._do(key, state, task)
        except (CatalogError, SecretError, OwnTokenError, ApiError) as error:
            found = failure_of(error)
            return Broken(work, found.reason, found.message)

    async def _do(self, key: CacheKey, state: RoundState, task: Task) -> Result:
        credentials = await self._places.credentials(key, task.spec)
        match task:
            case Ask():
                if not self._is_leader():
                    return Broken(RoundWork.ASK, Reason.FENCED, _NOT_LEADING)
                return await self._ask(key.namespace, state, task, credentials)
            case ReadLog(spec):
                return await self._with_log(spec, credentials, lambda log: self._read(state, log))
            case SaveSnapshot(spec):
                if not self._is_leader():
                    return Broken(RoundWork.SAVE, Reason.FENCED, _NOT_LEADING)
                return await self._with_log(spec, credentials, lambda log: save(log, task, state.events))
            case SendMinimum(spec, minimum, token):
                if not self._is_leader():
                    return Broken(RoundWork.SEND, Reason.FENCED, _NOT_LEADING)
                refused = await self._participants.send(spec, state.addresses, credentials, minimum, token)
                return Delivered(minimum, refused)
            case PreviewRound():
                return await self._preview(key.namespace, task, credentials)

    async def _preview(self, namespace: str, task: PreviewRound, credentials: Credentials) -> Forecast:
        """Both specs decide by the same answers and the same log, unless they wait for answers for another time."""
        specs = task.spec, task.proposed
        addresses = await self._places.participants(namespace, task.spec)
        started_at = self._clock()
        # Participants are asked once for both: reports of two moments would differ by what happened in between.
        heard = [await self._participants.ask(task.spec, addresses, credentials)] * 2
        if task.proposed.timeouts.answer != task.spec.timeouts.answer:
            heard[1] = await self._participants.ask(task.proposed, addresses, credentials)
        asked = frozenset(address.name for address in addresses)
        each = [
            (spec, watermark, Heard(started_at, asked, *found))
            for spec, watermark, found in zip(specs, task.watermarks, heard, strict=True)
        ]

        def decide(log: UpdateLog) -> list[CutForecast]:
            read_at, events = self._clock(), log.recover().events
            history = history_of(events)
            return [with_bytes(*forecast(*item, history, read_at), events) for item in each]

        in_force, proposed = await self._with_log(task.spec, credentials, decide)
        return Forecast(len(asked), len(heard[0][0]), in_force, proposed)

    async def _ask(self, namespace: str, state: RoundState, task: Ask, credentials: Credentials) -> Heard:
        """The log is claimed first: a later claim fences everything that is decided by these answers. Minimums are
        propagated also when the log does not answer.
        """
        spec, token, unclaimed = task.spec, task.least, None
        if not spec.dry_run:
            try:
                token = await self._with_log(spec, credentials, lambda log: claimed(log, task))
            except (CatalogError, SecretError) as error:
                unclaimed = failure_of(error)
        started_at = self._clock()
        state.addresses = await self._places.participants(namespace, spec)
        answers, unanswered = await self._participants.ask(spec, state.addresses, credentials)
        asked = frozenset(address.name for address in state.addresses)
        return Heard(started_at, asked, answers, unanswered, token, unclaimed)

    def _read(self, state: RoundState, log: UpdateLog) -> LogRead:
        read_at = self._clock()
        state.events = log.recover().events
        return LogRead(history_of(state.events), read_at)

    def _with_log(
        self, spec: CatalogCompactionSpec, credentials: Credentials, use: Callable[[UpdateLog], T]
    ) -> Awaitable[T]:
        def in_thread() -> T:
            with closing(self._logs.open(spec, credentials)) as log:
                return use(log)

        async def waiting() -> T:
            async with self._threads:
                return await asyncio.to_thread(in_thread)

        return waiting()


def claimed(log: UpdateLog, task: Ask) -> int:
    """The token of the round. A log that was there is not made again: that it is gone says that it was lost. Where the
    log has no space for a claim, what lies below the snapshot goes first: deleting is all that such a log still does.
    """
    try:
        return log.claim(task.least, begins=not task.known)
    except CatalogLogFullError:
        with suppress(CatalogLogError):
            log.sweep()
        raise


def save(log: UpdateLog, task: SaveSnapshot, events: tuple[LogEvent, ...]) -> Saved:
    """Cut the log, and count the bytes. `events`: of the log before. Raises CatalogError."""
    outcome, snapshot = cut(log, task.candidate, task.token, trim=task.trim)
    gone = bytes_cut(events, snapshot) if outcome is SnapshotOutcome.SAVED else 0
    return Saved(outcome, snapshot.version, gone)


def with_bytes(found: CutForecast, cut: Cut | None, events: tuple[LogEvent, ...]) -> CutForecast:
    """The forecast with the bytes of its cut. Raises CatalogError."""
    if cut is None:
        return found
    whole = cut.candidate.snapshot()
    return replace(found, bytes=bytes_cut(events, trimmed(whole) if cut.trim else whole))


def bytes_cut(events: tuple[LogEvent, ...], snapshot: Snapshot) -> int:
    """Bytes of the values that a snapshot replaces, less its own; below 0 when it is larger than all of them."""
    replaced = sum(len(encode(event.event)) for event in events if event.event.version <= snapshot.version)
    return replaced - len(encode(snapshot))
