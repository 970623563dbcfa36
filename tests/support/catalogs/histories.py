"""Histories of the reference, driven through our commands and versions; times are those of the history."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction.catalogs.codec import canonical
from compaction.catalogs.commands.command import Batch, batch
from compaction.catalogs.commands.schemas import CreateSchema, CreateSystemSchema
from compaction.catalogs.model.applying import applied
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.catalogs.replay.parsing import ERRORS, command_of
from compaction.exceptions import CatalogValidationError

UPDATES = "catalog.update."


def records(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def puts(record: Any) -> Iterator[tuple[int, bytes, int]]:
    """Version, value and timestamp of what a record put into the log."""
    for transaction in record["txns"]:
        for key, data in transaction["puts"]:
            if key.startswith(UPDATES) and transaction["succeeded"]:
                yield int(key.removeprefix(UPDATES)), bytes.fromhex(data), transaction["timestamp"]


@dataclass
class History:
    """Versions by number, from 0, and how late updates are active."""

    versions: dict[int, Catalog] = field(default_factory=lambda: {0: EMPTY})
    delay: int = 0

    @property
    def latest(self) -> Catalog:
        return self.versions[max(self.versions)]

    def start(self, record: Any) -> None:
        """Version 1, which is active at once, and the delay of those that follow."""
        self._append(batch(EMPTY, [CreateSchema("PUBLIC"), CreateSystemSchema("SYSTEM")]), record)
        self.delay = record["in"]["delayMs"]

    def run(self, commands: Any, record: Any) -> Any:
        """What the reference answers to a batch: which commands did something, and the version; or the class of an
        error.
        """
        try:
            found = batch(self.latest, [command_of(one) for one in commands])
        except CatalogValidationError as error:
            return {"error": ERRORS[type(error)]}
        if found.entries:
            self._append(found, record)
        return {
            "applied": list(found.applied),
            "time": self.latest.activation_time,
            "version": self.latest.version,
        }

    def commits(self, commands: Any) -> bool:
        """Whether a batch would write anything now."""
        try:
            return bool(batch(self.latest, [command_of(one) for one in commands]).entries)
        except CatalogValidationError:
            return False

    def _append(self, found: Batch, record: Any) -> None:
        version = self.latest.version + 1
        update = VersionedUpdate(version, self.delay, found.entries)
        (timestamp,) = [stamp for put, _, stamp in puts(record) if put == version]
        (expected,) = [one for one in record["decoded"] if one["version"] == version]
        assert canonical.text(canonical.event(update)) == canonical.text(expected)
        self.versions[version] = applied(self.latest, update, timestamp)


def answer(result: Any) -> Any:
    """The reference's answer with the class of an error alone: its messages are not ours."""
    if isinstance(result, dict) and "error" in result:
        return {"error": result["error"]["class"]}
    return result
