"""Deaths of processes, not of machines: what was written stays, synced or not, so nothing here waits for a disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.segments.directory import fs


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs are still counted, ordered and interrupted: the calls happen, only the waiting does not."""
    monkeypatch.setattr(fs, "sync", lambda fd: None)
    monkeypatch.setattr(fs, "sync_data", lambda fd: None)


@pytest.fixture
def fresh(template: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes the log anew from the module's `template`, always under the same name."""

    def make() -> Path:
        directory = tmp_path / "log"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(template, directory, symlinks=True)
        return directory

    return make
