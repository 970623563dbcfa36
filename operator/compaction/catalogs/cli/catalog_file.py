"""The catalogs of a file given to `-f`, with their Secrets, read again when the file changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TextIO

import click

from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.manifests import load_secrets, objects_of
from compaction.api.names import CATALOG_KIND
from compaction.cli.lazy import report
from compaction.cli.local.policy_file import path_of, version_of
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
