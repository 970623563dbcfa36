"""Repositories over both key-value stores, SQLite with a folder and PostgreSQL with S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.object_stores import S3
from support.programs import needs
from support.staging.staging_repos import SMALL_RANGES, StagingRepo


def pytest_itemcollected(item: pytest.Item) -> None:
    """`ranges` are on S3 or not by a parameter that is not its own."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if "ranges" in getattr(item, "fixturenames", ()) and parameters.get("kv_url") == "postgresql":
        item.add_marker(needs("versitygw"))


@pytest.fixture
def ranges(request: pytest.FixtureRequest, kv_url: str, tmp_path: Path) -> RangeStorage:
    """Small ranges beside the key-value store: in a folder for SQLite, on S3 for PostgreSQL."""
    if kv_url.startswith("sqlite"):
        return RangeStorage(open_objects(str(tmp_path / "objects")), rule=SMALL_RANGES)
    server: S3 = request.getfixturevalue("s3")
    return RangeStorage(server.open(f"{server.bucket()}/example"), rule=SMALL_RANGES)


@pytest.fixture
def repo(kv: SqlKeyValueStore, ranges: RangeStorage) -> Iterator[StagingRepo]:
    """A repository with a branch `main` on the empty tree."""
    with closing(StagingRepo(kv, ranges)) as made:
        yield made
