"""A catalog in etcd, opened in one call: what a program that uses the library needs (docs/catalog-library.md).

Everything here waits for its answer. A program that must not wait takes the `manager`, whose changes are futures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.errors import CatalogArgumentError
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.manager.events import EventKind
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager, Executed
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import MAX_LOGICAL, hybrid

WAIT_SECONDS: Final = 60.0
"""How long a change may take until every process shows it."""


class OpenCatalog:
    """A catalog that this process follows. Any thread may use it."""

    def __init__(self, manager: CatalogManager) -> None:
        self.manager = manager

    def apply(self, *commands: CatalogCommand, timeout: float = WAIT_SECONDS) -> Executed | None:
        """Run commands as one version, all or none; returns when every process shows it, None without commands.

        Raises:
            CatalogValidationError: the rules of a catalog refuse a command.
            CatalogConflictError: other processes were faster in each attempt.
            CatalogClockError: this process's clock, or that of the last writer, is off.
            CatalogLogError: etcd does not answer, or refuses.
            TimeoutError: the answer did not come in `timeout` seconds; the version may come all the same.
        """
        return self.manager.execute(_commands(commands)).result(timeout)

    def apply_in_turn(self, *batches: Sequence[CatalogCommand], timeout: float = WAIT_SECONDS) -> list[Executed | None]:
        """Run lists of commands, a version each, without waiting between them: 300 statements take hardly longer than
        one. The error of the first that fails is raised; those before it stay, none after it runs.
        """
        asked = [_commands(batch) for batch in batches]
        return [running.result(timeout) for running in self.manager.execute_in_turn(asked)]

    @property
    def latest(self) -> Catalog:
        """The last version that this process has read, active or not."""
        return self.manager.latest

    def version(self, number: int) -> Catalog:
        """The version of this number. Raises CatalogNotFoundError when it is not retained."""
        return self.manager.catalog(number)

    def at(self, time: datetime | int) -> Catalog:
        """The version to use at a time: a datetime with a time zone, or a hybrid timestamp. Raises
        CatalogNotFoundError before the earliest that is retained, CatalogArgumentError for a time of another type.
        """
        if isinstance(time, datetime):
            if time.tzinfo is None:
                raise CatalogArgumentError(f"{time!r} has no time zone: a catalog has one time everywhere")
            time = hybrid(int(time.timestamp() * 1_000), MAX_LOGICAL)
        return self.manager.active(time)

    def listen(self, kind: EventKind, listener: Callable[[Any], Any]) -> None:
        """Call `listener` with each event of a kind from now on, on a thread of the catalog: it must not wait for a
        change of the catalog.
        """
        if not isinstance(kind, EventKind):
            raise CatalogArgumentError(f"{kind!r:.80} is no kind of an event: name one of EventKind")
        self.manager.listen(kind, listener)


@contextmanager
def open_catalog(
    etcd: str,
    prefix: str,
    *,
    ca: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    user: str = "",
    password: str = "",
    settings: Settings | None = None,
) -> Iterator[OpenCatalog]:
    """Follow the catalog below `prefix` until the block ends; an empty one gets its first version.

    `etcd`: URLs of its members, separated by commas. `ca`, `certificate`, `key`: PEM files. `settings`: the same for
    all processes of a catalog.

    Raises:
        CatalogArgumentError: an argument of another type.
        CatalogLogError: etcd does not answer, or refuses; CorruptCatalogLogError: the log is damaged.
    """
    for name, value in (("etcd", etcd), ("prefix", prefix)):
        if not isinstance(value, str) or not value:
            raise CatalogArgumentError(f"{name} is {value!r:.80}: a text that is not empty is needed")
    client = GatewayClient(EtcdSettings.of(etcd, tls=Tls(ca, certificate, key), user=user, password=password))
    with closing(EtcdUpdateLog(client, prefix)) as log:
        manager = CatalogManager(log, settings=settings)
        try:
            manager.start()
            manager.initialization.result(WAIT_SECONDS)
            yield OpenCatalog(manager)
        finally:
            manager.close()


def _commands(given: Sequence[CatalogCommand]) -> list[CatalogCommand]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise CatalogArgumentError(f"{given!r:.80} is no list of commands")
    for item in given:
        if not callable(getattr(item, "entries", None)):
            raise CatalogArgumentError(f"{item!r:.80} is no command, such as CreateTable")
    return list(given)
