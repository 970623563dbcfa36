"""`compactor run` on the catalogs of a file: one round each, or rounds until a signal."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, ProcessStatus
from compaction.api.catalog.reasons import OUTCOMES, Ended, Outcome
from compaction.api.text.printing import format_bytes, plural, printable
from compaction.catalogs.cli.catalog_file import CatalogFile
from compaction.catalogs.running import LocalCatalog
from compaction.cli.local.run import StopSignals
from compaction.cli.local.run_view import RunOptions
from compaction.cli.output import OutputFormat, emit, print_pairs
from compaction.errors import CompactionError

_WRONG = (Outcome.ABORTED, Outcome.FAILED)


def run_catalogs(file: CatalogFile, options: RunOptions) -> list[str]:
    """One round of each catalog, in order; what is wrong, one line for each thing."""
    problems: list[str] = []
    found: list[dict[str, Any]] = []
    for name in file.names:
        status = asyncio.run(_catalog(file, name, options).once())
        found.append(summary(name, status))
        both = [item for item in (status.compaction, status.propagation) if item is not None and item.outcome in _WRONG]
        problems += dict.fromkeys(f"{name}: {item.reason}: {item.message}" for item in both)
    _show(found, options.output)
    return problems


def watch_catalogs(file: CatalogFile, options: RunOptions, signals: StopSignals) -> None:
    """Rounds of all catalogs until SIGINT or SIGTERM, then the summary."""
    catalogs = [_catalog(file, name, options) for name in file.names]
    signals.call(lambda: _stop(catalogs))
    asyncio.run(_all(catalogs))
    _show([summary(catalog.catalog.metadata.name, catalog.status) for catalog in catalogs], options.output)


@contextmanager
def watched_beside(file: CatalogFile, options: RunOptions) -> Iterator[None]:
    """Rounds of all catalogs in a thread of their own, until the block is left; then the summary."""
    if not file.names:
        yield
        return
    catalogs = [_catalog(file, name, options) for name in file.names]
    thread = threading.Thread(target=lambda: asyncio.run(_all(catalogs)), name="catalogs")
    thread.start()
    try:
        yield
    finally:
        _stop(catalogs)
        thread.join()
        _show([summary(catalog.catalog.metadata.name, catalog.status) for catalog in catalogs], options.output)


def _catalog(file: CatalogFile, name: str, options: RunOptions) -> LocalCatalog:
    catalog = file.catalog(name)
    if catalog is None:
        raise CompactionError(f"CatalogCompaction {name} is not in the file any more")

    def manifest() -> CatalogCompaction | None:
        wanted = file.catalog(name)
        if wanted is None or not options.dry_run:
            return wanted
        return wanted.model_copy(update={"spec": wanted.spec.model_copy(update={"dry_run": True})})

    return LocalCatalog(
        manifest() or catalog,
        secrets=file,
        reread=manifest,
        tell=lambda ended: click.echo(_line(name, ended), err=True),
    )


async def _all(catalogs: Sequence[LocalCatalog]) -> None:
    await asyncio.gather(*(catalog.watch() for catalog in catalogs))


def _stop(catalogs: Sequence[LocalCatalog]) -> None:
    for catalog in catalogs:
        catalog.stop()


def _line(name: str, ended: Ended) -> str:
    found = ended.finding
    mark = "warning: " if OUTCOMES[found.reason] in _WRONG else ""
    return printable(f"{time.strftime('%H:%M:%S')}  {found.reason.value:<18}  {mark}{name}: {found.message}")


def summary(name: str, status: CatalogCompactionStatus) -> dict[str, Any]:
    """Return the outcome of a catalog's rounds, in exact values; None for what is not known."""
    pin = status.required_time
    return {
        "catalog": name,
        "earliestVersion": status.earliest_version,
        "latestVersion": status.latest_version,
        "versionsCut": status.versions_cut,
        "bytesCut": status.bytes_cut,
        "pin": None if pin is None else pin.to_object(),
        "compaction": _process(status.compaction),
        "propagation": _process(status.propagation),
        "participants": [participant.to_object() for participant in status.participants],
    }


def _process(ended: ProcessStatus | None) -> dict[str, Any] | None:
    if ended is None:
        return None
    return {"outcome": ended.outcome.value, "reason": ended.reason, "message": ended.message or None}


def _show(found: Sequence[dict[str, Any]], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        if found:
            emit(list(found), output)
        return
    for item in found:
        pin = item["pin"]
        who = f" of {pin['participant']}" if pin and pin.get("participant") else ""
        history = (
            "unknown" if item["earliestVersion"] is None else f"{item['earliestVersion']} to {item['latestVersion']}"
        )
        print_pairs(
            [
                ("Catalog", item["catalog"]),
                ("History", f"versions {history}" if item["earliestVersion"] is not None else history),
                ("Cut", f"{plural(item['versionsCut'], 'version')}, {format_bytes(item['bytesCut'])}"),
                ("Pinned by", f"{pin['reason']}{who}" if pin else "-"),
                *((name.capitalize(), _ended(item[name])) for name in ("compaction", "propagation")),
            ]
        )


def _ended(ended: dict[str, Any] | None) -> str:
    if ended is None:
        return "no round has ended"
    return printable(f"{ended['outcome']}, {ended['reason']}: {ended['message'] or ''}".rstrip(": "))
