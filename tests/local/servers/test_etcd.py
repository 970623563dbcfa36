"""A local etcd for a catalog: it answers only with its client certificate, and keeps its data."""

from __future__ import annotations

import http.client
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from compaction.catalogs.errors import CatalogLogAccessError
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.local.errors import ControlPlaneError
from compaction.local.programs.binaries import Binaries
from support.catalogs.logs import fill, update
from tools.servers.etcd import start_etcd


def test_data_is_there_after_a_restart(tmp_path: Path, binaries: Binaries) -> None:
    with start_etcd(tmp_path / "etcd", binaries.etcd) as first:
        log = EtcdUpdateLog(GatewayClient(first.settings), "/catalogs/a")
        fill(log, 3)
        log.close()
        assert stat.S_IMODE((tmp_path / "etcd").stat().st_mode) == 0o700
    assert not first.process.alive()
    with start_etcd(tmp_path / "etcd", binaries.etcd) as again:
        log = EtcdUpdateLog(GatewayClient(again.settings), "/catalogs/a")
        assert [event.event for event in log.recover().events] == [update(1), update(2), update(3)]
        log.close()


def test_no_stranger_is_served(tmp_path: Path, binaries: Binaries) -> None:
    """Another local user has the authority's certificate at most."""
    with start_etcd(tmp_path / "etcd", binaries.etcd, sync=False) as running:
        for tls, reason in ((Tls(running.authority.ca), "TLS fails with"), (Tls(), "CERTIFICATE_VERIFY_FAILED")):
            client = GatewayClient(EtcdSettings(running.settings.endpoints, tls))
            with pytest.raises(CatalogLogAccessError, match=reason), closing(EtcdUpdateLog(client, "/a")) as log:
                log.recover()


def test_a_stranger_is_told_so_however_late_its_request_comes(
    tmp_path: Path, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS 1.3 the member refuses the certificate after the handshake, so the request may find it gone already."""
    send = http.client.HTTPConnection.send

    def late(connection: http.client.HTTPConnection, data: bytes) -> None:
        time.sleep(0.05)
        send(connection, data)

    with start_etcd(tmp_path / "etcd", binaries.etcd, sync=False) as running:
        monkeypatch.setattr(http.client.HTTPConnection, "send", late)
        client = GatewayClient(EtcdSettings(running.settings.endpoints, Tls(running.authority.ca), call_seconds=1.0))
        with pytest.raises(CatalogLogAccessError, match="TLS fails with"), closing(EtcdUpdateLog(client, "/a")) as log:
            log.recover()


def test_a_program_that_ends_shows_its_log(tmp_path: Path) -> None:
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho no space left; exit 3\n")
    program.chmod(0o755)
    with pytest.raises(ControlPlaneError, match="no space left"), start_etcd(tmp_path / "data", program):
        pytest.fail("it does not run")
