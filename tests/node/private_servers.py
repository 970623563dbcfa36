"""S3, PostgreSQL and etcd on the node's address, each with a certificate of a private authority, as platforms have.

They speak nothing but TLS, and only who knows the authority trusts them: what works here works with the certificates
that a user hands over, and with no others.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

from compaction.local.cluster.certs import Authority, ensure_authority
from compaction.local.programs.binaries import find_binaries
from support.clocks import PATIENCE_SECONDS, eventually
from tools.node.places import NODE_ADDRESS
from tools.node.prepare import Report, ensure_packages
from tools.node.running import RunningNode
from tools.servers.versitygw import REGION

S3_PORT, POSTGRES_PORT, ETCD_PORT = 7443, 7432, 7379
POSTGRES = "/usr/lib/postgresql/15/bin"
NOBODY = 65534
"""As whom PostgreSQL runs, which refuses to be root."""
TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class PrivateServers:
    """`directory`: of their data, on the node."""

    node: RunningNode
    versitygw: Path
    directory: Path
    authority: Authority
    key: str = field(default_factory=lambda: f"key{secrets.token_hex(8)}")
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def trust(self) -> str:
        """The certificates of the authority, in PEM."""
        return self.authority.ca.read_text()

    @property
    def options(self) -> dict[str, str]:
        """What a user writes into the Secret of an object store."""
        endpoint = f"https://{NODE_ADDRESS}:{S3_PORT}"
        return {"endpoint": endpoint, "region": REGION, "access_key_id": self.key, "secret_access_key": self.secret}

    @property
    def etcd(self) -> str:
        return f"https://{NODE_ADDRESS}:{ETCD_PORT}"

    def bucket(self, name: str) -> str:
        """The URL of a new bucket."""
        (self.directory / "buckets" / name).mkdir()
        return f"s3://{name}"

    def database(self, name: str) -> str:
        """The URL of a new database, as a user writes it into a Secret."""
        self._psql(f'CREATE DATABASE "{name}" OWNER lake')
        return f"postgresql://lake:{quote(self.secret, safe='')}@{NODE_ADDRESS}:{POSTGRES_PORT}/{name}"

    def run(self, source: str, **known: object) -> str:
        """Execute Python on the node, where the servers are reached, with variables; returns what it printed."""
        program = "".join(f"{name} = {value!r}\n" for name, value in known.items()) + source
        answer = subprocess.run(
            self._there(sys.executable, "-"),
            input=program,
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def commands(self) -> list[list[str]]:
        """The servers, in the node's network."""
        certificate, key = (str(path) for path in self.authority.server)
        binaries = find_binaries()
        assert binaries is not None
        data, home = self.directory, self.directory / "postgres"
        s3 = [str(self.versitygw), "--port", f"{NODE_ADDRESS}:{S3_PORT}", "--region", REGION]
        found = [
            [*s3, "--cert", certificate, "--key", key, "posix", str(data / "buckets")],
            [str(binaries.etcd), f"--data-dir={data / 'etcd'}", "--log-level=error", f"--cert-file={certificate}",
             f"--key-file={key}", f"--listen-client-urls={self.etcd}", f"--advertise-client-urls={self.etcd}"],
            self._as_nobody(f"{POSTGRES}/postgres", "-D", str(home / "data"), "-k", str(home), "-p", str(POSTGRES_PORT),
                            f"--listen_addresses={NODE_ADDRESS}", "--fsync=off", "--ssl=on",
                            f"--ssl_cert_file={home}/server.crt", f"--ssl_key_file={home}/server.key"),
        ]  # fmt: skip
        return [self._there(*command) for command in found]

    def prepare(self) -> None:
        """Directories, and a cluster of PostgreSQL that lets nobody in without TLS and a password."""
        (self.directory / "buckets").mkdir()
        home = self.directory / "postgres"
        home.mkdir()
        for path in self.authority.server:
            shutil.copy(path, home)
        for path in (home, *home.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        made = [f"{POSTGRES}/initdb", "-D", str(home / "data"), "-U", "lake", "--no-sync", "--auth=trust"]
        subprocess.run(self._as_nobody(*made, "--encoding=UTF8", "--no-locale"), check=True, capture_output=True)
        rules = "local all all trust\nhostssl all lake 0.0.0.0/0 scram-sha-256\n"
        (home / "data" / "pg_hba.conf").write_text(rules)

    def await_all(self) -> None:
        """Until each of them answers."""
        eventually(lambda: self._psql("SELECT 1", check=False), "PostgreSQL to answer")
        self._psql(f"ALTER ROLE lake PASSWORD '{self.secret}'")
        for port in (S3_PORT, ETCD_PORT):
            eventually(partial(self._listens, port), f"a server on port {port}")

    def _listens(self, port: int) -> bool:
        connect = f"import socket; socket.create_connection(({NODE_ADDRESS!r}, {port})).close()"
        return subprocess.run(self._there(sys.executable, "-c", connect), capture_output=True).returncode == 0

    def _psql(self, statement: str, *, check: bool = True) -> bool:
        words = [f"{POSTGRES}/psql", "-qX", "-h", str(self.directory / "postgres"), "-p", str(POSTGRES_PORT)]
        command = self._as_nobody(*words, "-U", "lake", "-d", "postgres", "-c", statement)
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0 or not check, answer.stderr
        return answer.returncode == 0

    def _there(self, *command: str) -> list[str]:
        """In the node's network only, so that no process stands between this one and a server."""
        return ["nsenter", f"--target={self.node.first}", "--net", "--", *command]

    @staticmethod
    def _as_nobody(*command: str) -> list[str]:
        return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *command]


@contextmanager
def private_servers(node: RunningNode, versitygw: Path, report: Report) -> Iterator[PrivateServers]:
    """Served until the block is left. Installs PostgreSQL where it is missing."""
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        # Debian's package would start a server of its own.
        settings.parent.mkdir(exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    ensure_packages({f"{POSTGRES}/postgres": "postgresql-15"}, report=report)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compaction-private-")))
        directory.chmod(0o755)  # for nobody
        authority = ensure_authority(directory / "authority", addresses=[NODE_ADDRESS])
        servers = PrivateServers(node, versitygw, directory, authority)
        servers.prepare()
        known = os.environ | {"ROOT_ACCESS_KEY": servers.key, "ROOT_SECRET_KEY": servers.secret}
        log = stack.enter_context((directory / "log").open("w"))
        for command in servers.commands():
            child = subprocess.Popen(command, env=known, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/")
            stack.callback(_stop, child)
        servers.await_all()
        yield servers


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    child.wait(PATIENCE_SECONDS)
