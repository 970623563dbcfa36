"""One etcd for the tests of the log, and a log of one's own in it or in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.local.programs.binaries import Binaries
from support.catalogs.etcd_members import EtcdStore, Members, etcd_members
from support.catalogs.logs import MemoryStore, Store


@pytest.fixture(scope="session")
def etcd_program(binaries: Binaries) -> Path:
    return binaries.etcd


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory, etcd_program: Path) -> Iterator[Members]:
    """One member for the tests of a module."""
    with etcd_members(tmp_path_factory.mktemp("etcd"), etcd_program) as running:
        yield running


@pytest.fixture
def etcd_store(member: Members) -> Iterator[EtcdStore]:
    store = EtcdStore(member)
    yield store
    store.close()


@pytest.fixture(params=["memory", "etcd"])
def store(request: pytest.FixtureRequest) -> Store:
    """The same suite for both logs."""
    if request.param == "memory":
        return MemoryStore()
    found: EtcdStore = request.getfixturevalue("etcd_store")
    return found
