"""A watch of an update log that outlives connections, members and the history of etcd
(docs/design/catalogs.md#watch-of-the-log).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from compaction.catalogs.errors import (
    CatalogError,
    CatalogLogCutError,
    CatalogLogError,
    CatalogLogRewoundError,
    CatalogLogUnavailableError,
    CorruptCatalogLogError,
)
from compaction.catalogs.log import requests
from compaction.catalogs.log.etcd.port import Changes, EtcdClient, Stream
from compaction.catalogs.log.layout import Keys, Stored, unpack
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.log.position import Position
from compaction.catalogs.log.recovery import stored_from
from compaction.catalogs.log.surveys import Survey, surveyed


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. `pulse`: between two checks that nothing was missed; after a failure `first_pause`, then twice as long
    each time up to `most_pause`.
    """

    pulse: float = 5.0
    first_pause: float = 0.1
    most_pause: float = 5.0


@dataclass(frozen=True, slots=True)
class Listener:
    """Who gets the events, and the error that no reconnection repairs."""

    deliver: Callable[[LogEvent], None]
    failed: Callable[[Exception], None]


class EtcdWatch:
    """A `Watch` with two threads: one reads and delivers, the other ends a connection that has fallen silent."""

    def __init__(self, client: EtcdClient, keys: Keys, start: Position, listener: Listener, pace: Pace) -> None:
        self._client, self._keys, self._pace = client, keys, pace
        self._listener = listener
        self._at = start
        self._list_again = False
        self._stream: Stream | None = None
        self._waiting = False
        self._lock = threading.Lock()
        self._delivering = threading.RLock()
        self._closed = threading.Event()
        self._threads = (
            threading.Thread(target=self._run, name="catalog watch", daemon=True),
            threading.Thread(target=self._check, name="catalog watch pulse", daemon=True),
        )

    def start(self) -> None:
        """Begin to deliver."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        self._end_stream()
        with self._delivering:  # a delivery that is under way ends first, unless it is this one
            pass

    def join(self) -> None:
        """Wait for the threads of a closed watch; a request that is under way ends first."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # -- reading and delivering -------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = self._pace.first_pause
        while not self._closed.is_set():
            before = self._at.version
            try:
                self._catch_up()
                self._follow()
            except CatalogLogUnavailableError:
                # A member that stopped, a network that is cut: another connection goes on from the same revision.
                if self._at.version != before:
                    pause = self._pace.first_pause
                self._closed.wait(pause)
                pause = min(2 * pause, self._pace.most_pause)
            except CatalogLogCutError:
                self._list_again = True
            except CatalogError as error:
                if not self._closed.is_set():
                    self._closed.set()
                    self._listener.failed(error)
        self._end_stream()

    def _catch_up(self) -> None:
        """Before each connection: is this still the log that was watched, and does a watch find what was missed?"""
        survey = self._survey(self._at)
        if not self._at.behind(survey):
            self._at = self._at.at_revision(survey.revision)
        elif self._list_again or self._at.missed_before(survey):
            self._list(survey)
        self._list_again = False

    def _list(self, survey: Survey) -> None:
        kept = stored_from(self._client, self._keys, survey.snapshot, survey.revision)
        for stored in self._at.missed(kept, survey, self._keys):
            self._hand_over(stored, survey.revision)
            self._at = self._at.past(stored, self._at.revision)
        self._at = self._at.at_revision(survey.revision)

    def _follow(self) -> None:
        """One connection, until it ends."""
        stream = self._client.watch(*self._keys.updates, self._at.revision + 1)
        with self._lock:
            self._stream = stream
        try:
            self._confirm()
            while not self._closed.is_set():
                self._waiting = True
                changes = stream.next()
                self._waiting = False
                self._take(changes)
        finally:
            self._waiting = False
            stream.close()

    def _confirm(self) -> None:
        """After each connection: the store may have been replaced since the check before it. Its copy may lack what was
        delivered, or count its revisions from an earlier one, and then the connection would stay silent for ever.
        A store that is replaced later takes the connection with it, or `_check` ends that.
        """
        survey = self._survey(self._at)
        if survey.revision < self._at.revision or self._at.missed_before(survey):
            raise CatalogLogCutError(self._name, "its revisions count from an earlier one than before")

    def _take(self, changes: Changes) -> None:
        for pair in changes.pairs:
            stored = unpack(self._keys, pair.key, pair.value)
            if not self._at.follows(stored):
                raise CatalogLogCutError(self._name, f"version {stored.event.version} came out of order")
            self._hand_over(stored, pair.revision)
            self._at = self._at.past(stored, pair.revision)
        if not changes.pairs:
            self._at = self._at.at_revision(max(self._at.revision, changes.revision))

    def _hand_over(self, stored: Stored, revision: int) -> None:
        with self._delivering:
            if self._closed.is_set():
                raise CatalogLogUnavailableError(self._name, "the watch is closed")
            self._listener.deliver(stored.seen(revision))

    # -- checking ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """End a connection over which nothing came although the log went on: a half of the network may be gone, and
        the member at the other end may have lost its leader. Twice behind at the same place, while the reader waits.
        At once where the store was replaced: the reader says so when it connects again.
        """
        suspect: Position | None = None
        while not self._closed.wait(self._pace.pulse):
            at = self._at
            try:
                late = at.behind(self._survey(at)) and self._waiting and self._at is at
            except (CatalogLogRewoundError, CorruptCatalogLogError):
                self._end_stream()
                continue
            except CatalogLogError:
                continue  # the connection may be good all the same
            if late and suspect is at:
                self._end_stream()
            suspect = at if late else None

    def _end_stream(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _survey(self, at: Position) -> Survey:
        """What the log says of itself. Raises CatalogLogRewoundError when it lacks what was delivered up to `at`."""
        answer = self._client.transaction(requests.survey(self._keys, at.version or 0))
        found = surveyed(self._keys, answer.found)
        if found is None:
            if at.version:
                raise CatalogLogRewoundError(self._name, "it does not exist, and it did before")
            found = Survey(0, 0, 1, 0, None, 0, 0, answer.revision)
        at.require_same(found, self._name)
        return found

    @property
    def _name(self) -> str:
        return f"{self._client.name}{self._keys.prefix}"
