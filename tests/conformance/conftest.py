"""A harness for each kind of store, and the core over it: every test of the suite runs once for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.segments.directory import fs
from compaction.staging.store import StagingConnection
from conformance.harness import Core, Harness
from conformance.harnesses.blocks import BlockHarness
from conformance.harnesses.lines import LineHarness
from conformance.harnesses.segments import SegmentHarness
from conformance.harnesses.staging import StagingHarness
from conformance.lines import record
from conformance.lines.kind import registered
from support.blocks.block_stores import empty_bucket, empty_folder
from support.object_stores import S3
from support.processes.worker_ports import ThreadEngine
from support.programs import needs
from tools.servers.postgres import PostgresServer

Open = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Harness]]


@contextmanager
def segments(request: pytest.FixtureRequest, place: Path) -> Iterator[Harness]:
    yield SegmentHarness(place / "logs")


@contextmanager
def blocks_in_a_folder(request: pytest.FixtureRequest, place: Path) -> Iterator[Harness]:
    with _blocks(empty_folder(request, place)) as harness:
        yield harness


@contextmanager
def blocks_on_s3(request: pytest.FixtureRequest, place: Path) -> Iterator[Harness]:
    with _blocks(empty_bucket(request)) as harness:
        yield harness


@contextmanager
def lines(request: pytest.FixtureRequest, place: Path) -> Iterator[Harness]:
    with registered():
        yield LineHarness(place / "lines")


@contextmanager
def _blocks(connection: BlockStoreConnection) -> Iterator[Harness]:
    with closing(BlockStore.open(connection)) as books:
        yield BlockHarness(connection, books)


@contextmanager
def staging_in_a_folder(request: pytest.FixtureRequest, place: Path) -> Iterator[Harness]:
    connection = StagingConnection(f"sqlite:///{place}/kv.db")
    with closing(StagingHarness(connection, f"file://{place}/objects")) as harness:
        yield harness


@contextmanager
def staging_on_s3(request: pytest.FixtureRequest, place: Path) -> Iterator[Harness]:
    server: S3 = request.getfixturevalue("s3")
    postgres: PostgresServer = request.getfixturevalue("postgres")
    connection = StagingConnection(postgres.url(postgres.create()), options=server.gateway.options())
    with closing(StagingHarness(connection, f"{server.bucket()}/example")) as harness:
        yield harness


HARNESSES: tuple[Any, ...] = (
    segments,
    blocks_in_a_folder,
    pytest.param(blocks_on_s3, marks=needs("versitygw")),
    staging_in_a_folder,
    pytest.param(staging_on_s3, marks=needs("versitygw")),
    lines,
)


@pytest.fixture(params=HARNESSES, ids=lambda item: item.__name__)
def harness(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """An empty store. Deaths are of processes, not of machines: nothing waits for the disk."""
    for module in (fs, record):
        monkeypatch.setattr(module, "sync", lambda fd: None)
    with request.param(request, tmp_path) as opened:
        yield opened


@pytest.fixture
def core(harness: Harness) -> Iterator[Core]:
    """The tasks of an attempt run one after another, so that its calls come in one order."""
    with closing(ThreadEngine(parallelism=1)) as engine, closing(Core(harness, engine)) as core:
        yield core
