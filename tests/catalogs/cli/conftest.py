"""A real etcd for commands on an update log."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from compaction.local.programs.binaries import Binaries
from support.catalogs.etcd_members import Members, etcd_members


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[Members]:
    with etcd_members(tmp_path_factory.mktemp("etcd"), binaries.etcd) as running:
        yield running


@pytest.fixture
def empty_place(etcd: Members) -> list[str]:
    """The options of a log that does not exist yet; the prefix comes last."""
    endpoints = ",".join(str(member.endpoint) for member in etcd.members)
    return ["--etcd", endpoints, "--prefix", f"/catalogs/{secrets.token_hex(4)}"]
