""""""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.staging.kv.sql import open_key_value_store
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.staging.staging_repos import SMALL_RANGES, StagingRepo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def branch(tmp_path: Path, folder: Path) -> Iterator[StagingRepo]:
    """A repository in a folder, its keys and values in SQLite."""
    kv = open_key_value_store(f"sqlite:///{tmp_path}/kv.db")
    kv.migrate()
    repo = StagingRepo(kv, RangeStorage(open_objects(str(folder)), rule=SMALL_RANGES))
    yield repo
    repo.close()
    kv.close()
