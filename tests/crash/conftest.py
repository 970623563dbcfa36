"""Deaths of processes, not of machines: what was written stays, synced or not, so nothing here waits for a disk."""

from __future__ import annotations

import pytest

from compaction.stores.segments import fs


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs are still counted, ordered and interrupted: the calls happen, only the waiting does not."""
    monkeypatch.setattr(fs, "sync", lambda fd: None)
