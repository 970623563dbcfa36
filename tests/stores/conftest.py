"""Stores of objects: a local folder, and a real S3 server. What is promised of one holds for the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.storage.objects.store import ObjectStorage, open_objects
from support.faults.fault_proxy import FaultProxy
from support.programs import needs
from support.stores.s3 import S3


@pytest.fixture(params=["folder", pytest.param("s3", marks=needs("versitygw"))])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    """An empty store, of each kind."""
    if request.param == "folder":
        return open_objects(str(tmp_path / "objects"))
    server: S3 = request.getfixturevalue("s3")
    return server.open(f"{server.bucket()}/some/prefix")


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", s3.gateway.port)) as running:
        yield running
