"""Histories of the reference, line by line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
