"""`compactor catalogs describe`: what is in one version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.cli.versions import chosen, moment, version_options
from compaction.catalogs.codec import canonical
from compaction.catalogs.manager.history import recovered
from compaction.catalogs.model.catalog import Catalog
from compaction.cli.output import Column, OutputFormat, emit, output_option, print_pairs

_COLUMNS = (
    Column("kind", "Kind"),
    Column("id", "Id", right=True),
    Column("schema", "Schema"),
    Column("name", "Name"),
    Column("details", "Details"),
)


@click.command("describe")
@log_options
@version_options
@output_option()
def describe_command(*, place: LogPlace, version: int | None, at: str | None, output: OutputFormat) -> None:
    """Show a version of a catalog: by default the latest, else that of --version, or the one active --at a time.

    json and yaml have the canonical form, with every column and the fingerprint.

    Example: compactor catalogs describe --etcd http://127.0.0.1:2379 --prefix /catalogs/orders --version 7
    """
    with place.opened() as log:
        found = chosen(recovered(log.recover().events), version, at)
    if output is not OutputFormat.TABLE:
        emit({**canonical.catalog(found), "fingerprint": canonical.fingerprint(found)}, output)
        return
    zone = found.default_zone
    print_pairs(
        [
            ("Version", str(found.version)),
            ("Active at", moment(found.activation_time)),
            ("Default zone", "-" if zone is None else zone.name),
            ("Fingerprint", canonical.fingerprint(found)),
        ]
    )
    click.echo()
    emit(list(objects(found)), output, columns=_COLUMNS)


def objects(catalog: Catalog) -> Iterator[dict[str, Any]]:
    """A row for each object of a version: zones, then schemas with what is in them, by ascending id."""
    for zone in sorted(catalog.zones.values(), key=lambda one: one.id):
        details = f"{zone.partitions} partitions, {zone.replicas} replicas"
        yield {"kind": "Zone", "id": zone.id, "schema": "-", "name": zone.name, "details": details}
    for contents in catalog.contents():
        schema = contents.schema.name
        yield {"kind": "Schema", "id": contents.schema.id, "schema": "-", "name": schema, "details": "-"}
        for table in contents.tables:
            details = f"{len(table.columns)} columns, {len(table.versions)} column sets"
            yield {"kind": "Table", "id": table.id, "schema": schema, "name": table.name, "details": details}
        for index in contents.indexes:
            details = f"{index.kind.name.lower()}, {index.status.name.lower()}, of table {index.table_id}"
            yield {"kind": "Index", "id": index.id, "schema": schema, "name": index.name, "details": details}
        for view in contents.views:
            yield {
                "kind": "View",
                "id": view.id,
                "schema": schema,
                "name": view.name,
                "details": view.kind.name.lower(),
            }
