"""Reading an update log whole, and a watch of it that outlives connections, members and the history of etcd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from compaction.catalogs.errors import (
    CatalogError,
    CatalogLogCutError,
    CatalogLogError,
    CatalogLogRewoundError,
    CatalogLogUnavailableError,
    CorruptCatalogLogError,
)
from compaction.catalogs.log import layout
from compaction.catalogs.log.etcd.wire import Changes, EtcdClient, Get, KeyValue, Stream
from compaction.catalogs.log.layout import Keys, LogSurvey, Stored, shown, surveyed, unpack
from compaction.catalogs.log.port import LogEvent, Recovered
from compaction.catalogs.model.entries import Snapshot

# Progress of a watch of an update log, and what follows from it (docs/design/catalogs.md#watch-of-the-log).


@dataclass(frozen=True, slots=True)
class Position:
    """`revision`: everything up to it is delivered. `version` and `stamp`: of the last version, `snapshot`: of the last
    snapshot; None as long as that is not known.
    """

    revision: int
    version: int | None = None
    snapshot: int | None = None
    stamp: bytes = b""

    def past(self, stored: Stored, revision: int) -> Position:
        """After the delivery of an event; `revision` is that of the event, or an older one inside a listing."""
        version = stored.event.version
        newest = self.version is None or version >= self.version
        return Position(
            max(self.revision, revision),
            version if newest else self.version,
            version if isinstance(stored.event, Snapshot) else self.snapshot,
            stored.stamp if newest else self.stamp,
        )

    def at_revision(self, revision: int) -> Position:
        """The same events, delivered as of another revision of the store."""
        return replace(self, revision=revision)

    def follows(self, stored: Stored) -> bool:
        """Return whether an event of a connection is the next one. Where it is not, the store has been replaced by a
        copy.
        """
        return self.version is None or isinstance(stored.event, Snapshot) or stored.event.version == self.version + 1

    def behind(self, survey: LogSurvey) -> bool:
        """Return whether the log holds something that is not delivered. Versions decide where they are known: after a
        restore of the store its revisions say nothing.
        """
        appended = survey.changed > self.revision if self.version is None else survey.version > self.version
        cut = survey.snapshot_changed > self.revision if self.snapshot is None else survey.snapshot > self.snapshot
        return appended or cut

    def missed_before(self, survey: LogSurvey) -> bool:
        """Return whether a connection that begins at the next revision leaves out what is not delivered: the store was
        restored, and counts its revisions from an earlier one.
        """
        return self.behind(survey) and survey.changed <= self.revision

    def missed(self, kept: Iterable[tuple[Stored, int]], survey: LogSurvey, keys: Keys) -> list[Stored]:
        """Of what the log holds, what is not delivered yet: the snapshot first, then versions ascending.

        Raises CorruptCatalogLogError for a gap.
        """
        found: list[Stored] = []
        expected = survey.snapshot
        for stored, revision in kept:
            if stored.event.version != expected:
                break
            expected += 1
            if self._lacks(stored, revision):
                found.append(stored)
        if expected != survey.version + 1:
            raise CorruptCatalogLogError(shown(keys.update(expected)), f"is missing; the last is {survey.version}")
        return found

    def _lacks(self, stored: Stored, revision: int) -> bool:
        known = self.snapshot if isinstance(stored.event, Snapshot) else self.version
        return revision > self.revision if known is None else stored.event.version > known

    def require_same(self, survey: LogSurvey, log: str) -> None:
        """Raises CatalogLogRewoundError when the log lacks what was delivered, or has something else in its place."""
        if self.version is None:
            if survey.revision < self.revision:
                raise CatalogLogRewoundError(log, "its revision is lower than one that was read before")
            return
        asked = survey.asked
        # A snapshot in the place of a version bears the stamp of its own writer.
        another = asked is not None and not isinstance(asked.event, Snapshot) and asked.stamp != self.stamp
        if survey.version < self.version or another:
            raise CatalogLogRewoundError(log, f"it no longer holds version {self.version} as it was delivered")


# Reading a whole log, at one revision and in pages (docs/design/catalogs.md#recovery-of-the-log).

ATTEMPTS: Final = 5
"""etcd keeps five minutes of history where it is compacted every five minutes: one reading has far more than it needs.
"""
FIRST_PAGE: Final = 64
MOST_KEYS: Final = 2_048
PAGE_BYTES: Final = 4 << 20
"""About so much memory does a page take."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A log as it was recovered, and where a watch of it begins."""

    recovered: Recovered
    end: Position


def read_log(client: EtcdClient, keys: Keys) -> Reading:
    """Everything from the snapshot, or from version 1, to exactly the last version.

    Raises CorruptCatalogLogError, which names the key, for a gap, a value that does not decode, versions whose
    activation times do not ascend, and the log of another product.
    """
    for _ in range(ATTEMPTS):
        answer = client.transaction(layout.survey(keys))
        survey = surveyed(keys, answer.found)
        if survey is None:
            return Reading(Recovered((), 0, answer.revision), Position(answer.revision, 0, 1))
        try:
            return _walk(client, keys, survey)
        except CatalogLogCutError:
            # etcd's history was compacted past the revision of this reading: what is there now has another.
            continue
    raise CatalogLogUnavailableError(client.name, f"its history was compacted during each of {ATTEMPTS} readings")


def _walk(client: EtcdClient, keys: Keys, survey: LogSurvey) -> Reading:
    if survey.snapshot > max(survey.version, 1):
        raise CorruptCatalogLogError(shown(keys.snapshot), f"is {survey.snapshot}, the last version {survey.version}")
    expected, active, last = survey.snapshot, 0, None
    events: list[LogEvent] = []
    for stored, revision in stored_from(client, keys, survey.snapshot, survey.revision):
        version = stored.event.version
        name = shown(keys.update(expected))
        if version != expected:
            raise CorruptCatalogLogError(name, f"is missing, and version {version} exists")
        if isinstance(stored.event, Snapshot) and version != survey.snapshot:
            raise CorruptCatalogLogError(name, f"holds a snapshot, and the log's is version {survey.snapshot}")
        if not isinstance(stored.event, Snapshot) and version == survey.snapshot > 1:
            raise CorruptCatalogLogError(name, "holds an update where the log's snapshot should be")
        if stored.activation <= active:
            raise CorruptCatalogLogError(name, "is not active later than the version before it")
        events.append(stored.seen(revision))
        expected, active, last = version + 1, stored.activation, stored
    if expected != survey.version + 1:
        there = f"the last version is {survey.version}"
        raise CorruptCatalogLogError(
            shown(keys.update(min(expected, survey.version + 1))),
            f"{'is missing' if expected <= survey.version else 'exists'}, and {there}",
        )
    if last is not None and active != survey.activation:
        raise CorruptCatalogLogError(
            shown(keys.version), f"says {survey.activation}, and the last version is active at {active}"
        )
    stamp = b"" if last is None else last.stamp
    end = Position(survey.revision, survey.version, survey.snapshot, stamp)
    return Reading(Recovered(tuple(events), survey.version, survey.revision, survey.token), end)


def stored_from(client: EtcdClient, keys: Keys, version: int, revision: int) -> Iterator[tuple[Stored, int]]:
    """Values from a version on, ascending, at one revision of the store; each with the revision that wrote it. Errors
    as `pairs_from` and `unpack`.
    """
    for pair in pairs_from(client, keys, version, revision):
        yield unpack(keys, pair.key, pair.value), pair.revision


def pairs_from(client: EtcdClient, keys: Keys, version: int, revision: int) -> Iterator[KeyValue]:
    """As `stored_from`, the values as they are. Raises CatalogLogCutError when etcd forgets that revision
    meanwhile.
    """
    start, end = keys.update(version), keys.updates[1]
    limit = FIRST_PAGE
    while True:
        page = client.range(Get(start, end, limit), revision)
        yield from page.pairs
        if not page.more or not page.pairs:
            return
        start = page.pairs[-1].key + b"\0"
        held = sum(len(pair.value) for pair in page.pairs) // len(page.pairs) + 1
        limit = max(1, min(MOST_KEYS, 4 * limit, PAGE_BYTES // held))


# A watch of an update log that outlives connections, members and the history of etcd
# (docs/design/catalogs.md#watch-of-the-log).


@dataclass(frozen=True, slots=True)
class WatchPace:
    """Seconds. `pulse`: between two checks that nothing was missed; after a failure `first_pause`, then twice as long
    each time up to `most_pause`.
    """

    pulse: float = 5.0
    first_pause: float = 0.1
    most_pause: float = 5.0


@dataclass(frozen=True, slots=True)
class Listener:
    """The receiver of the events, and of the error that no reconnection repairs."""

    deliver: Callable[[LogEvent], None]
    failed: Callable[[Exception], None]


class EtcdWatch:
    """A `Watch` with two threads: one reads and delivers, the other ends a connection that has fallen silent."""

    def __init__(self, client: EtcdClient, keys: Keys, start: Position, listener: Listener, pace: WatchPace) -> None:
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

    def _list(self, survey: LogSurvey) -> None:
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

    def _survey(self, at: Position) -> LogSurvey:
        """Read the state that the log itself records. Raises CatalogLogRewoundError when it lacks what was delivered up
        to `at`.
        """
        answer = self._client.transaction(layout.survey(self._keys, at.version or 0))
        found = surveyed(self._keys, answer.found)
        if found is None:
            if at.version:
                raise CatalogLogRewoundError(self._name, "it does not exist, and it did before")
            found = LogSurvey(0, 0, 1, 0, None, 0, 0, answer.revision)
        at.require_same(found, self._name)
        return found

    @property
    def _name(self) -> str:
        return f"{self._client.name}{self._keys.prefix}"
