"""Which version a command shows, and how versions look in its answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from compaction.api.text.times import format_timestamp, timestamp_from_epoch
from compaction.catalogs.manager.history import History
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.hybrid import MAX_LOGICAL, hybrid, physical

Command = TypeVar("Command", bound=Callable[..., Any])


def moment(timestamp: int) -> str:
    """A hybrid timestamp as RFC 3339, whole seconds; `-` for that of version 0."""
    milliseconds = physical(timestamp)
    return format_timestamp(timestamp_from_epoch(milliseconds / 1000)) if milliseconds else "-"


def version_options(command: Command) -> Command:
    """The options `--version` and `--at`, passed to the command as they are."""
    at = click.option("--at", metavar="TIME", help="The version active at this time, RFC 3339.")
    return click.option("--version", type=click.IntRange(0), help="The version of this number.")(at(command))


def chosen(history: History, version: int | None, at: str | None) -> Catalog:
    """The version asked for, the latest without one. Raises click.UsageError and CatalogNotFoundError."""
    if version is not None and at is not None:
        raise click.UsageError("--version and --at name two versions: leave out one")
    if version is not None:
        return history.catalog(version)
    return history.latest if at is None else history.active(_timestamp(at))


def _timestamp(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
        return hybrid(int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000), MAX_LOGICAL)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--at {text}: not a time; write it as 2026-11-25T20:00:00Z") from error
