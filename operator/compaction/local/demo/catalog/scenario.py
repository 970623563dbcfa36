"""What the demo of catalogs compacts: the DDL of a thousand versions, and the CatalogCompaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from compaction.api.names import API_VERSION, CATALOG_KIND
from compaction.catalogs.commands.altering import AddColumns, DropColumns
from compaction.catalogs.commands.columns import ColumnSpec
from compaction.catalogs.commands.command import PUBLIC, Command
from compaction.catalogs.commands.indexes import CreateIndex
from compaction.catalogs.commands.schemas import CreateSchema, DropSchema
from compaction.catalogs.commands.tables import CreateTable, DropTable, PrimaryKey, RenameTable
from compaction.catalogs.commands.zones import CreateZone, DropZone
from compaction.catalogs.model.enums import ColumnType
from compaction.local.demo.cluster import NAMESPACE, secrets_yaml

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


def beginning() -> Iterator[Sequence[Command]]:
    """A zone, tables and schemas, a version each: all participants hold all partitions of the tables."""
    yield [CreateZone(ZONE, ("default",), partitions=PARTITIONS, replicas=len(NODES))]
    for name in TABLES:
        yield [_table(PUBLIC, name)]
    for name in SCHEMAS:
        yield [CreateSchema(name)]


def changes() -> Iterator[Sequence[Command]]:
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
        yield [_table(schema, "T")]
        yield [RenameTable(schema, "T", "U")]
        yield [DropTable(schema, "U")]
        yield [DropZone(zone), DropSchema(schema)]
        yield [DropColumns(PUBLIC, "CUSTOMERS", (column,))]
        yield [DropColumns(PUBLIC, "ORDERS", (column,))]


def index() -> CreateIndex:
    """The index that is built slowly."""
    return CreateIndex(PUBLIC, INDEX, "ORDERS", ("CUSTOMER",))


def _table(schema: str, name: str) -> CreateTable:
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


def secrets(tls: Mapping[str, str], token: str) -> str:
    """The two Secrets as YAML. It is given to kubectl and written nowhere."""
    return secrets_yaml({ETCD_SECRET: tls, PARTICIPANTS_SECRET: {"token": token}})
