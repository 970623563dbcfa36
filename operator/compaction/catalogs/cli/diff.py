"""`compactor catalogs diff`: what two versions of a catalog have in common, left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.codec import canonical
from compaction.catalogs.manager.history import recovered
from compaction.catalogs.model.catalog import Catalog
from compaction.cli.output import Column, OutputFormat, emit, output_option

_COLUMNS = (
    Column("change", "Change"),
    Column("kind", "Kind"),
    Column("id", "Id", right=True),
    Column("name", "Name"),
    Column("fields", "Fields", lambda value: ", ".join(value) or "-"),
)
_NESTED = frozenset({"tables", "indexes", "systemViews"})
_KINDS = {"zones": "Zone", "schemas": "Schema", "tables": "Table", "indexes": "Index", "systemViews": "View"}
Objects = dict[tuple[str, int], dict[str, Any]]


@click.command("diff")
@click.argument("first", metavar="A", type=click.IntRange(0))
@click.argument("second", metavar="B", type=click.IntRange(0))
@log_options
@output_option()
def diff_command(*, first: int, second: int, place: LogPlace, output: OutputFormat) -> None:
    """List what changed from version A to version B: objects that were created, changed or deleted.

    Example: compactor catalogs diff 3 7 --etcd http://127.0.0.1:2379 --prefix /catalogs/orders
    """
    with place.opened() as log:
        history = recovered(log.recover().events)
    emit(list(differences(history.catalog(first), history.catalog(second))), output, columns=_COLUMNS)


def differences(before: Catalog, after: Catalog) -> Iterator[dict[str, Any]]:
    """A row {change, kind, id, name, fields} for each object that is not the same, by kind and id."""
    old, new = _objects(before), _objects(after)
    for place in sorted(old.keys() | new.keys()):
        mine, theirs = old.get(place), new.get(place)
        if mine == theirs:
            continue
        fields: list[str] = []
        if mine is not None and theirs is not None:
            fields = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        change = "Created" if mine is None else "Deleted" if theirs is None else "Changed"
        kind, id = place
        named = theirs if theirs is not None else mine
        yield {"change": change, "kind": kind, "id": id, "name": (named or {})["name"], "fields": fields}


def _objects(catalog: Catalog) -> Objects:
    """(kind, id) -> its canonical form, without what is in it."""
    found: Objects = {}
    shown = canonical.catalog(catalog)
    for schema in shown["schemas"]:
        for part in _NESTED:
            for one in schema[part]:
                found[_KINDS[part], one["id"]] = one
        found["Schema", schema["id"]] = {name: value for name, value in schema.items() if name not in _NESTED}
    for zone in shown["zones"]:
        found["Zone", zone["id"]] = zone
    return found
