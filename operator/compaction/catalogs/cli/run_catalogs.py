"""`compactor run` on the catalogs of a file, read again when it changes: one round each, or rounds until a signal."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

import click

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, CatalogPreview, ProcessStatus
from compaction.api.catalog.reasons import OUTCOMES, Ended, Outcome
from compaction.api.manifests import load_secrets, objects_of
from compaction.api.names import CATALOG_KIND
from compaction.api.requests import RequestOutcome
from compaction.api.text.printing import format_bytes, plural, printable
from compaction.catalogs.running import LocalCatalog
from compaction.cli.lazy import report
from compaction.cli.local.policy_file import path_of, version_of
from compaction.cli.local.run import StopSignals
from compaction.cli.local.run_view import RunOptions
from compaction.cli.output import OutputFormat, emit, print_pairs
from compaction.cli.previews import show_previews
from compaction.errors import CompactionError, InvalidManifestError
from compaction.storage.secrets import DirectorySecrets, GivenSecrets

# Catalogs from YAML (see `objects`), for a machine without Kubernetes.


def load_catalogs(text: str, *, source: str) -> list[CatalogCompaction]:
    """Every CatalogCompaction in a text, in order; other kinds are passed over. `source` names the file.

    Raises:
        InvalidManifestError: not YAML, or a catalog that the API server would refuse, or whose participants only a
            cluster can find; the message has the field and what to write instead.
    """
    catalogs = objects_of(text, CatalogCompaction, CATALOG_KIND, source=source)
    for catalog in catalogs:
        where = f"{source}: {CATALOG_KIND} {catalog.metadata.name}: spec.participants"
        if catalog.spec.participants.service_account_token is not None:
            raise InvalidManifestError(
                f"{where}.serviceAccountToken: an account needs a cluster: write the shared secret of the participants "
                "into a Secret, and name it under spec.participants.token"
            )
        if catalog.spec.participants.selector is not None:
            raise InvalidManifestError(
                f"{where}.selector: labels of pods need a cluster: name each participant with its address under "
                "spec.participants.urls"
            )
    return catalogs


# The catalogs of a file, as people give it to `-f`: with their Secrets, and what changes while they are compacted.


class CatalogFile:
    """Implements `storage.secrets.Secrets`: those that stand in the file now, then those of `secrets_dir`. Safe for
    threads.

    What is wrong with the file at the beginning is wrong usage (exit code 2); later it is reported, and everything
    stays as it was.
    """

    def __init__(
        self, source: TextIO, text: str, *, wanted: str | None = None, secrets_dir: Path | None = None
    ) -> None:
        self._mounted = DirectorySecrets(str(secrets_dir)) if secrets_dir is not None else None
        self._lock = Lock()
        self._path = path_of(source)
        self.source = source.name
        self._seen = version_of(self._path)
        try:
            self._catalogs, self._given = _read(text, source.name)
        except InvalidManifestError as error:
            raise click.UsageError(str(error)) from error
        if wanted is not None and wanted not in self._catalogs:
            there = ", ".join(self._catalogs) or "none"
            raise click.UsageError(f"{source.name}: no CatalogCompaction {wanted}; there are {there}")
        self.names: tuple[str, ...] = tuple(self._catalogs) if wanted is None else (wanted,)

    def read(self, name: str) -> Mapping[str, str]:
        """See `Secrets`: the documents of the file go first."""
        given = self._given
        if self._mounted is None or name in given.values:
            return given.read(name)
        return self._mounted.read(name)

    def catalog(self, name: str) -> CatalogCompaction | None:
        """The catalog as the file has it now; None when it is not in it any more."""
        with self._lock:
            self._reread()
            return self._catalogs.get(name)

    def _reread(self) -> None:
        version = version_of(self._path)
        if self._path is None or version in (None, self._seen):
            return
        self._seen = version
        try:
            self._catalogs, self._given = _read(self._path.read_text(encoding="utf-8"), str(self._path))
        except (InvalidManifestError, UnicodeDecodeError, OSError) as error:
            report(CompactionError(f"{error}; catalogs stay as they were"))


def _read(text: str, name: str) -> tuple[dict[str, CatalogCompaction], GivenSecrets]:
    """Catalogs by name. Raises InvalidManifestError."""
    catalogs: dict[str, CatalogCompaction] = {}
    for catalog in load_catalogs(text, source=name):
        if catalog.metadata.name in catalogs:
            raise InvalidManifestError(f"{name}: two of its catalogs are called {catalog.metadata.name}: rename one")
        catalogs[catalog.metadata.name] = catalog
    needed = any(catalog.spec.secret_names for catalog in catalogs.values())
    return catalogs, GivenSecrets(load_secrets(text, source=name) if needed else {}, name)


# Rounds of these catalogs: one each, or until a signal.

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


def compare_catalogs(before: CatalogFile, file: CatalogFile, options: RunOptions) -> list[str]:
    """Show what catalogs would do, beside those of the same names in another file; returns what is wrong, by lines."""
    problems: list[str] = []
    found: list[tuple[CatalogPreview, dict[str, str]]] = []
    for name in file.names:
        proposed = file.catalog(name)
        if proposed is None or name not in before.names:
            problems.append(f"{name}: the file of --against holds no CatalogCompaction of this name")
            continue
        preview = asyncio.run(_catalog(before, name, replace(options, dry_run=False)).preview(proposed.spec))
        found.append((preview, {"catalog": name, "file": file.source}))
        if preview.outcome is RequestOutcome.REFUSED:
            problems.append(f"{name}: {preview.reason}: {preview.message}")
    show_previews(found, options.output)
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
