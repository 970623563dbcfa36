"""Who writes the history: one process with a manager, as any user of the catalog; and what it leaves pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.commands.schema_commands import MakeIndexAvailable, StartBuildingIndex
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings, Get
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.layout import Keys
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.model.catalog import Catalog
from compaction.local.errors import DemoError
from demos.catalog import nodes
from demos.catalog.nodes import NODES, PARTITIONS, PREFIX, TABLES, VERSIONS, Model, Node, Recorded

SETTINGS: Final = Settings(delay=2, max_skew=1)
"""All processes of the demo share one clock: versions are active at once."""
PROGRESS: Final = 250


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """What etcd holds for the catalog: keys of versions, and bytes of all keys and values."""

    versions: int
    bytes: int


@contextmanager
def opened(settings: EtcdSettings) -> Iterator[CatalogManager]:
    """A manager that follows the log. Raises CatalogError."""
    log = EtcdUpdateLog(GatewayClient(settings), PREFIX)
    manager = CatalogManager(log, settings=SETTINGS)
    try:
        manager.start()
        manager.initialization.result()
        yield manager
    finally:
        manager.close()
        log.close()


def stored(settings: EtcdSettings) -> StoredVersions:
    """Read from etcd itself. Raises CatalogLogError."""
    client = GatewayClient(settings)
    try:
        pairs = client.range(Get(PREFIX.encode(), f"{PREFIX}\x7f".encode())).pairs
    finally:
        client.close()
    first, end = Keys(PREFIX).updates
    return StoredVersions(
        sum(first <= pair.key < end for pair in pairs), sum(len(pair.key) + len(pair.value) for pair in pairs)
    )


@dataclass
class Author:
    """Writes versions, records each, and lets the participants know. `required`: times that something needs, by what
    it is; `transactions`: begin times.
    """

    manager: CatalogManager
    model: Model
    nodes: Sequence[Node]
    index: int = 0
    checkpointed_at: int = 0
    first_transaction: int = 0
    second_transaction: int = 0

    def write_all(self, report: Callable[[str], None]) -> None:
        """A thousand versions with what pins them. Raises CatalogError, DemoError."""
        self._record(self.manager.catalog(1))
        for commands in nodes.beginning():
            self._run(commands)
        for node in self.nodes:
            hold_partitions(node, self._tables)
        changes = nodes.changes()
        while (version := self.manager.latest.version) < VERSIONS:
            if version + 1 == nodes.INDEX_AT:
                self._register_index()
            else:
                self._run(next(changes))
            self._pin(self.manager.latest.version)
            if self.manager.latest.version % PROGRESS == 0:
                report(f"{self.manager.latest.version} versions are written")

    def finish_index(self) -> Recorded:
        """The index is built: one more version makes it available. Raises CatalogError, DemoError."""
        return self._run([MakeIndexAvailable(self.index)])

    def tell(self, node: Node) -> None:
        """A participant that starts reads the catalog and holds its partitions. Raises DemoError."""
        for item in self.model.all():
            _add(node, item)
        hold_partitions(node, self._tables)

    @property
    def _tables(self) -> list[int]:
        """Ids of the tables that stay."""
        return [table.id for table in self.manager.latest.tables.values() if table.name in TABLES]

    def _register_index(self) -> None:
        self._run([nodes.index()])
        self.index = next(index.id for index in self.manager.latest.indexes.values() if index.name == nodes.INDEX)
        self._run([StartBuildingIndex(self.index)])
        self.nodes[0].act("start-index-build", indexId=self.index)

    def _pin(self, version: int) -> None:
        if version == nodes.CHECKPOINT_AT:
            self.checkpointed_at = publish_now(self.nodes)
        elif version == nodes.FIRST_TRANSACTION_AT:
            self.first_transaction = self.nodes[0].act("begin")
        elif version == nodes.SECOND_TRANSACTION_AT:
            self.second_transaction = self.nodes[1].act("begin")

    def _run(self, commands: Sequence[CatalogCommand]) -> Recorded:
        done = self.manager.execute(commands).result()
        if done is None:
            raise DemoError(f"the catalog had nothing to do for {commands}")
        return self._record(self.manager.catalog(done.version))

    def _record(self, catalog: Catalog) -> Recorded:
        recorded = self.model.record(catalog)
        for node in self.nodes:
            _add(node, recorded)
        return recorded


def _add(node: Node, recorded: Recorded) -> None:
    node.act("add-version", version=recorded.version, activation=str(recorded.activation))


def hold_partitions(node: Node, tables: Sequence[int]) -> None:
    """All partitions of the tables; each node leads some. Raises DemoError."""
    for table in tables:
        for partition in range(PARTITIONS):
            leads = NODES[(table + partition) % len(NODES)] == node.name
            node.act("add-partition", tableId=table, partition=partition, role="Primary" if leads else "Replica")


def publish_now(nodes: Sequence[Node]) -> int:
    """As a coordinator of before: all partitions publish that they need nothing before now, while no transaction is
    active; the time. Raises DemoError.
    """
    now = min(int(node.report()["clock"]) for node in nodes)
    for node in nodes:
        node.call("POST", "/v1/minimum", {"timestamp": str(now), "token": 1})
        if not node.checkpoints:
            node.checkpoint()
    return now
