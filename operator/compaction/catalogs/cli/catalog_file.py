"""The catalogs of a file, as people give it to `-f`: with their Secrets, and what changes while they are compacted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TextIO

import click

from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.manifests.catalogs import load_catalogs
from compaction.api.manifests.secrets import load_secrets
from compaction.cli.errors import report
from compaction.cli.local.policy_file import path_of, version_of
from compaction.errors import CompactionError, InvalidManifestError
from compaction.storage.secrets import DirectorySecrets, GivenSecrets


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
    for one in load_catalogs(text, source=name):
        if one.metadata.name in catalogs:
            raise InvalidManifestError(f"{name}: two of its catalogs are called {one.metadata.name}: rename one")
        catalogs[one.metadata.name] = one
    needed = any(one.spec.secret_names for one in catalogs.values())
    return catalogs, GivenSecrets(load_secrets(text, source=name) if needed else {}, name)
