"""Participants of the demo as processes, its DDL, and what was written at each version."""

from __future__ import annotations

import hashlib
import http.client
import json
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, Final

from compaction.api.names import API_VERSION, CATALOG_KIND
from compaction.catalogs.codec import canonical
from compaction.catalogs.commands.command import PUBLIC, CatalogCommand, ColumnSpec
from compaction.catalogs.commands.schema_commands import CreateIndex, CreateSchema, DropSchema
from compaction.catalogs.commands.table_commands import (
    AddColumns,
    CreateTable,
    DropColumns,
    DropTable,
    PrimaryKey,
    RenameTable,
)
from compaction.catalogs.commands.zone_commands import CreateZone, DropZone
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import ColumnType, Table
from compaction.local.errors import DemoError
from compaction.local.processes.process import ProcessId, spawn
from demos.cluster import NAMESPACE
from tools.servers.versitygw import free_port

# The subject of compaction in the demo of catalogs: the DDL of a thousand versions, and the CatalogCompaction.

NAME: Final = "orders"
PREFIX: Final = "/catalogs/orders"
ETCD_SECRET: Final = "catalog-etcd"  # the name of a Secret
PARTICIPANTS_SECRET: Final = "catalog-participants"  # the name of a Secret
NODES: Final = ("node-1", "node-2", "node-3")
PARTITIONS: Final = 2
VERSIONS: Final = 1000
"""So many there are before anything is cut."""
CHECKPOINT_AT: Final = 100
"""The version at which node-2 takes its last checkpoint."""
FIRST_TRANSACTION_AT: Final = 300
SECOND_TRANSACTION_AT: Final = 600
INDEX_AT: Final = 800
"""The version that registers an index, whose build does not end."""
INDEX: Final = "BY_CUSTOMER"
AVAILABILITY: Final = "1s"
"""So long readers may use versions that were replaced."""
ZONE: Final = "FAST"
TABLES: Final = ("ORDERS", "CUSTOMERS", "ITEMS", "STOCK")
SCHEMAS: Final = ("SALES", "STORE")


def beginning() -> Iterator[Sequence[CatalogCommand]]:
    """A zone, tables and schemas, a version each: all participants hold all partitions of the tables."""
    yield [CreateZone(ZONE, ("default",), partitions=PARTITIONS, replicas=len(NODES))]
    for name in TABLES:
        yield [_create_table(PUBLIC, name)]
    for name in SCHEMAS:
        yield [CreateSchema(name)]


def changes() -> Iterator[Sequence[CatalogCommand]]:
    """DDL without an end, a version each: columns, schemas, zones and tables come and go, ten versions at a time. After
    the beginning and the index, the last version of a demo ends ten of them: no table is left that has no partitions.
    """
    number = 0
    while True:
        number += 1
        column, schema, zone = f"C{number}", f"S{number}", f"Z{number}"
        yield [AddColumns(PUBLIC, "ORDERS", (_column(column),))]
        yield [AddColumns(PUBLIC, "CUSTOMERS", (_column(column),))]
        yield [CreateSchema(schema)]
        yield [CreateZone(zone, ("default",), partitions=1, replicas=1)]
        yield [_create_table(schema, "T")]
        yield [RenameTable(schema, "T", "U")]
        yield [DropTable(schema, "U")]
        yield [DropZone(zone), DropSchema(schema)]
        yield [DropColumns(PUBLIC, "CUSTOMERS", (column,))]
        yield [DropColumns(PUBLIC, "ORDERS", (column,))]


def index() -> CreateIndex:
    """The index that is built slowly."""
    return CreateIndex(PUBLIC, INDEX, "ORDERS", ("CUSTOMER",))


def _create_table(schema: str, name: str) -> CreateTable:
    columns = (ColumnSpec("ID", ColumnType.INT64, False), _column("CUSTOMER"))
    return CreateTable(schema, name, columns, PrimaryKey(("ID",)), zone=ZONE)


def _column(name: str) -> ColumnSpec:
    return ColumnSpec(name, ColumnType.INT64, True)


def compaction(etcd: str, participants: Mapping[str, str]) -> dict[str, Any]:
    """The CatalogCompaction as a document; all nodes are expected, `participants` are found. Short times, so that one
    can watch all of it.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": CATALOG_KIND,
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "catalog": {"endpoints": [etcd], "prefix": PREFIX, "secretName": ETCD_SECRET},
            "participants": {
                "urls": [{"name": name, "url": url} for name, url in participants.items()],
                "token": {"secretName": PARTICIPANTS_SECRET},
            },
            "topology": {"participants": list(NODES)},
            "lowWatermark": {"updateInterval": "1s", "dataAvailability": AVAILABILITY},
            "interval": "1s",
        },
    }


def secrets(tls: Mapping[str, str], token: str) -> dict[str, Mapping[str, str]]:
    """The two Secrets by name."""
    return {ETCD_SECRET: tls, PARTICIPANTS_SECRET: {"token": token}}


# The record of what was written: each version with its activation time and a digest of its descriptors, recorded at
# write time; and where history may begin, computed from that alone.

_ACTIVATION = attrgetter("activation")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One version. `activation`: hybrid timestamp; `digest`: of all descriptors."""

    version: int
    activation: int
    digest: str


@dataclass
class Model:
    """All versions that were written, in order. Safe for threads."""

    _lock: Lock = field(default_factory=Lock)
    _recorded: list[Recorded] = field(default_factory=list)

    def record(self, catalog: Catalog) -> Recorded:
        """The version that was written last."""
        one = Recorded(catalog.version, catalog.activation_time, digest(catalog))
        with self._lock:
            self._recorded.append(one)
        return one

    def all(self) -> tuple[Recorded, ...]:
        """Those of this instant."""
        with self._lock:
            return tuple(self._recorded)

    def active(self, at: int) -> Recorded:
        """The version that is active at a hybrid timestamp, at or after the first one."""
        recorded = self.all()
        return recorded[bisect_right(recorded, at, key=_ACTIVATION) - 1]

    def first_kept(self, required: int) -> int:
        """The version that history begins with when it is needed from `required` on: the one before the version active
        then, and never the last one.
        """
        return max(1, self.active(required).version - 1)


def digest(catalog: Catalog) -> str:
    """Of everything that a reader of the version sees. Column sets that a table had before are no part of it: those
    that no kept version reaches are trimmed with the history.
    """
    seen = {
        "version": catalog.version,
        "activation": catalog.activation_time,
        "default": catalog.default_zone_id,
        "zones": [canonical.zone(item) for _, item in sorted(catalog.zones.items())],
        "schemas": [[item.id, item.name] for _, item in sorted(catalog.schemas.items())],
        "tables": [_table(item) for _, item in sorted(catalog.tables.items())],
        "indexes": [canonical.index(item) for _, item in sorted(catalog.indexes.items())],
    }
    return hashlib.sha256(canonical.text(seen).encode("ascii")).hexdigest()


def _table(table: Table) -> list[object]:
    keys = [table.id, table.name, table.schema_id, table.zone_id, table.pk_index_id, list(table.pk_column_ids)]
    return [*keys, [canonical.column(each) for each in table.columns]]


# Participants of the demo: reference participants as processes (`compactor catalogs serve`), driven over HTTP.

START_SECONDS: Final = 120.0
"""Until it answers. Not a measure of speed: a busy machine takes long to import."""
ANSWER_SECONDS: Final = 60.0
CHECKPOINT_SECONDS: Final = 0.5
_HOST: Final = "127.0.0.1"


@dataclass
class Node:
    """One running participant. `checkpoints`: it takes them itself. Safe for threads."""

    name: str
    port: int
    checkpoints: bool
    process: ProcessId
    token: str = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    def act(self, action: str, **body: Any) -> int:
        """Drive it; the timestamp of its answer, 0 where it has none. Raises DemoError."""
        return int(self.call("POST", f"/v1/admin/{action}", body).get("timestamp") or 0)

    def report(self) -> dict[str, Any]:
        """What it would tell a coordinator. Raises DemoError."""
        return self.call("GET", "/v1/report")

    def checkpoint(self) -> None:
        """Take one. Raises DemoError."""
        self.act("begin-checkpoint")
        self.act("finish-checkpoint")

    def close(self) -> None:
        """Free the connection; another call opens one again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request. Raises DemoError: it did not answer, or refused."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with self._lock:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(_HOST, self.port, timeout=ANSWER_SECONDS)
            try:
                self._connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = self._connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                self._connection = None
                raise DemoError(f"{self.name} does not answer {method} {path}: {error}") from error
        if answer.status != http.client.OK:
            raise DemoError(f"{self.name} refused {method} {path}: {answer.status} {text[:500]!r}")
        found: dict[str, Any] = json.loads(text)
        return found


def start_node(directory: Path, name: str, token: str, *, checkpoints: bool, detached: bool) -> Node:
    """Start a participant that keeps its log in `directory`, where its secret is.

    `detached`: it outlives this process, else it ends with the thread that called this. Raises DemoError.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = directory / "participants.secret"
    secret.touch(mode=0o600)
    secret.write_text(token + "\n")
    port = free_port()
    command = [sys.executable, "-m", "compaction.cli.main", "catalogs", "serve", "--name", name, "--admin"]
    command += ["--port", str(port), "--secret-file", f"coordinator={secret}"]
    command += ["--availability", AVAILABILITY, "--update-interval", "500ms"]
    if checkpoints:
        command += ["--checkpoint-interval", f"{CHECKPOINT_SECONDS}s"]
    child = spawn(command, cwd=directory, log=directory / f"{name}.log", detached=detached)
    process = ProcessId.of(name, child.pid)
    if process is None:
        raise DemoError(f"{name} ended at once: see {directory / f'{name}.log'}")
    return Node(name, port, checkpoints, process, token)


def wait_ready(node: Node, directory: Path) -> None:
    """Until it answers. Raises DemoError."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            node.report()
            return
        except DemoError as error:
            if not node.process.alive() or time.monotonic() > deadline:
                raise DemoError(f"{node.name} did not start: see {directory / f'{node.name}.log'}") from error
        time.sleep(0.1)


@contextmanager
def checkpointing(node: Node) -> Iterator[threading.Event]:
    """It takes checkpoints once the event is set, until the block is left."""
    begun, stopped = threading.Event(), threading.Event()

    def run() -> None:
        begun.wait()
        while not stopped.is_set():
            node.checkpoint()
            stopped.wait(CHECKPOINT_SECONDS)

    thread = threading.Thread(target=run, name="checkpoints", daemon=True)
    thread.start()
    try:
        yield begun
    finally:
        stopped.set()
        begun.set()
        thread.join(ANSWER_SECONDS)
