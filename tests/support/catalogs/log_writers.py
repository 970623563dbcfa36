"""Writers that append to a log while its store fails, and what must be true of the log and its watches afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from compaction.catalogs.errors import CatalogLogError
from compaction.catalogs.log.etcd import wire
from compaction.catalogs.log.etcd.connections import EtcdAnswer
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Document, Endpoint, EtcdSettings
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.model.entries import Event, Snapshot
from support.catalogs.etcd_members import EtcdStore
from support.catalogs.logs import Collector, at, until, update

PAUSE_SECONDS: Final = 0.05
MOST_LOST: Final = 5


@dataclass
class Writer:
    """Appends one version after the other until it is stopped; a version it was not answered for is tried again.

    It reads the log where it begins, after an error, and where `MOST_LOST` versions in a row were not its own: a log
    that each append reads costs the more the longer a test waits for a server.
    """

    log: EtcdUpdateLog
    mark: int
    won: dict[int, int] = field(default_factory=dict)
    """Version to the mark that was acknowledged."""
    doubtful: set[int] = field(default_factory=set)
    """Versions of calls that no answer came to."""
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        version = lost = 0
        while not self.stopped.is_set():
            try:
                if not version or lost == MOST_LOST:
                    version, lost = self.log.recover().version + 1, 0
                try:
                    won = self.log.append(update(version, self.mark), at(version))
                except CatalogLogError:
                    self.doubtful.add(version)
                    raise
            except CatalogLogError:
                version = lost = 0
                self.stopped.wait(PAUSE_SECONDS)
                continue
            if won:
                self.won[version] = self.mark
                self.stopped.wait(PAUSE_SECONDS)
            lost = 0 if won else lost + 1
            version += 1


@contextlib.contextmanager
def writing(*writers: Writer) -> Iterator[None]:
    threads = [threading.Thread(target=writer.run) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for writer in writers:
            writer.stopped.set()
        for thread in threads:
            thread.join()


def acknowledged(*writers: Writer) -> int:
    return sum(len(writer.won) for writer in writers)


def more(writers: tuple[Writer, ...], count: int) -> None:
    """Wait for so many more acknowledged versions."""
    before = acknowledged(*writers)
    until(lambda: acknowledged(*writers) >= before + count, f"{count} versions after {before}")


def require_true(store: EtcdStore, writers: tuple[Writer, ...], *collectors: Collector) -> None:
    """Each acknowledged version is in the log as its writer wrote it, and each watch delivered the log, once."""
    kept = {event.event.version: event.event for event in store.open().recover().events}
    for writer in writers:
        assert {version: kept[version] for version in writer.won} == {
            version: update(version, mark) for version, mark in writer.won.items()
        }
    owners = {version for writer in writers for version in writer.won}
    assert sum(len(writer.won) for writer in writers) == len(owners), "a version was won twice"
    assert set(kept) - owners <= {version for writer in writers for version in writer.doubtful}
    for collector in collectors:
        until(lambda collector=collector: len(collector.events) >= len(kept) or bool(collector.errors), "all events")  # type: ignore[misc]
        assert [event.event for event in collector.events] == list(kept.values())


def followed(events: list[Event], start: int = 0) -> int:
    """A user of the log that applies what a watch delivers: the version it ends with. Each update must be the next, a
    snapshot may jump ahead.
    """
    version = start
    for event in events:
        if isinstance(event, Snapshot):
            version = max(version, event.version)
        else:
            assert event.version == version + 1, f"version {event.version} after {version}"
            version = event.version
    return version


# A client of etcd that loses requests and answers, by a plan or at chance.


class Loss(Enum):
    """What becomes of one request."""

    NONE = "arrives and is answered"
    REQUEST = "never arrives"
    ANSWER = "arrives, and the answer is lost"
    TWICE = "arrives a second time after it was answered"


class LossyClient(GatewayClient):
    """`plan` has a loss for each transaction in turn, then all is well. `between` runs after each that was lost."""

    def __init__(
        self, settings: EtcdSettings, plan: Iterator[Loss], between: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(settings, sleep=lambda _: None)
        self.plan = plan
        self.between = between
        self.lost = 0

    def _post(self, endpoint: Endpoint, path: str, what: Document) -> EtcdAnswer:
        loss = next(self.plan, Loss.NONE) if path == wire.TRANSACTION else Loss.NONE
        if loss is Loss.REQUEST:
            self._lose()
        answer = super()._post(endpoint, path, what)
        if loss is Loss.TWICE:
            super()._post(endpoint, path, what)
        if loss is Loss.ANSWER:
            self._lose()
        return answer

    def _lose(self) -> None:
        self.lost += 1
        self.between()
        raise ConnectionResetError("lost on the way")
