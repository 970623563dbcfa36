"""A real S3 server for tests: versitygw on loopback, a fresh bucket for each use."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compaction.storage.objects.store import ObjectStorage, Retrying, open_objects
from support.faults.proxies import FaultProxy
from support.programs import needs
from tools.servers.versitygw import S3Gateway, free_port, start_versitygw

QUICK = Retrying(tries=4, base=0.01, cap=0.05)


@dataclass
class S3:
    """`s3.bucket()` is the URL of a new bucket; `s3.open(url)` the store there."""

    gateway: S3Gateway
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def bucket(self) -> str:
        return f"s3://{self.gateway.make_bucket(f'bucket-{next(self._numbers)}')}"

    def open(self, url: str, *, endpoint: str = "", retrying: Retrying = QUICK, **options: str) -> ObjectStorage:
        return open_objects(url, options=self.gateway.options(endpoint=endpoint) | options, retrying=retrying)


@contextlib.contextmanager
def running_s3(directory: Path, program: Path) -> Iterator[S3]:
    """The server, stopped at the end."""
    with start_versitygw(directory, program, port=free_port()) as gateway:
        yield S3(gateway)


# Stores of objects: a local folder, and a real S3 server. What is promised of one holds for the other.


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
