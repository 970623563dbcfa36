"""Helpers for files written by Ra: manifests and entries as the manifests describe them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import LogState


@pytest.fixture(scope="session")
def ra_fixtures(shared_fixtures: Path) -> Path:
    return shared_fixtures / "ra"


@pytest.fixture(scope="session")
def manifest(ra_fixtures: Path) -> Callable[[str], dict[str, Any]]:
    """The manifest of a fixture by its directory's name."""

    def load(name: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((ra_fixtures / name / "manifest.json").read_text())
        return result

    return load


@pytest.fixture(scope="session")
def readback() -> Callable[[LogState], list[dict[str, Any]]]:
    """Every readable entry of a log in the form of a manifest's `ra_readback`."""

    def read(log: LogState) -> list[dict[str, Any]]:
        return [
            {
                "idx": entry.index,
                "term": entry.term,
                "size": entry.length,
                "sha256": hashlib.sha256(entry.payload).hexdigest(),
                "file": entry.file,
            }
            for entry in iter_entries(log)
        ]

    return read


@pytest.fixture
def restored(ra_fixtures: Path, tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Path]:
    """A writable copy of a fixture directory, with its manifest's symlinks (they travel as small files)."""

    def restore(name: str, files: list[dict[str, Any]]) -> Path:
        target = tmp_path / name.replace("/", "-")
        for source in sorted((ra_fixtures / name).rglob("*")):
            if source.is_file():
                copy = target / source.relative_to(ra_fixtures / name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        for file in files:
            if file["type"] == "symlink":
                path = target / file["name"]
                path.unlink(missing_ok=True)
                path.symlink_to(file["target"].rsplit("/", 1)[-1])
        return target

    return restore
