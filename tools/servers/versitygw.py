"""versitygw, an S3 server over a folder, for tests and the demo of block stores (about two CPU-minutes to build).

Not a store for data of one's own: it is started on loopback, with credentials made for the run (`S3Gateway`).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compaction.local.cluster.certs import Authority
from compaction.local.errors import ControlPlaneError
from compaction.local.processes.process import ProcessId, spawn
from compaction.local.programs.gobuild import VERSITYGW_VERSION
from tools.promtool import ExtraProgram

VERSITYGW: Final = ExtraProgram("versitygw", f"versitygw-{VERSITYGW_VERSION}")
find_versitygw = VERSITYGW.find
ensure_versitygw = VERSITYGW.ensure
REGION: Final = "us-east-1"
START_SECONDS: Final = 60.0
SERVER: Final = "versitygw"


@dataclass(frozen=True, slots=True)
class S3Gateway:
    """A running server on loopback, and the only account it knows. `authorities`: PEM, of one that speaks TLS."""

    port: int
    access_key: str
    secret_key: str = field(repr=False)
    buckets: Path
    process: ProcessId
    authorities: str = ""

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.authorities else 'http'}://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> str:
        """A new, empty bucket. With this backend a bucket is a folder."""
        (self.buckets / name).mkdir()
        return name

    def options(self, *, endpoint: str = "") -> dict[str, str]:
        """What `open_objects` needs besides the URL; through another endpoint (a proxy) when one is given."""
        return {
            "endpoint": endpoint or self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": REGION,
            "allow_http": "true",
            **({"root_certificate": self.authorities} if self.authorities else {}),
        }


@contextlib.contextmanager
def start_versitygw(
    directory: Path, program: Path, *, port: int, authority: Authority | None = None
) -> Iterator[S3Gateway]:
    """Serve buckets below `directory` until the block is left. Raises as `serve`."""
    gateway = serve(directory, program, port=port, authority=authority)
    try:
        yield gateway
    finally:
        gateway.process.stop()


def serve(
    directory: Path, program: Path, *, port: int, detached: bool = False, authority: Authority | None = None
) -> S3Gateway:
    """Start a server of buckets below `directory`. `detached`: it outlives us; else it ends with the thread that called
    this. `authority`: it speaks TLS, with the server's certificate of it.

    Raises:
        ControlPlaneError: it ended, or did not answer within a minute; with the end of its log.
    """
    buckets, own, log = directory / "buckets", directory / "own", directory / "versitygw.log"
    for folder in (buckets, own):
        folder.mkdir(parents=True)
    access, secret = f"key{secrets.token_hex(8)}", secrets.token_urlsafe(24)
    command = [str(program), "--port", f"127.0.0.1:{port}", "--health", "/health", "--region", REGION]
    if authority is not None:
        certificate, key = authority.server
        command += ["--cert", str(certificate), "--key", str(key)]
    # In the environment, not in the arguments, which every user of the machine may read.
    environment = {
        "ROOT_ACCESS_KEY": access,
        "ROOT_SECRET_KEY": secret,
        "VGW_META_SIDECAR": str(own),
        "TMPDIR": str(own),
    }
    child = spawn([*command, "posix", str(buckets)], cwd=directory, log=log, env=environment, detached=detached)
    process = ProcessId.of(SERVER, child.pid)
    if process is None:
        raise ControlPlaneError(SERVER, f"ended with {child.wait()}", _end(log))
    authorities = "" if authority is None else authority.ca.read_text()
    gateway = S3Gateway(port, access, secret, buckets, process, authorities)
    deadline = time.monotonic() + START_SECONDS
    try:
        while not _answers(gateway):
            if child.poll() is not None or time.monotonic() > deadline:
                reason = f"ended with {child.returncode}" if child.returncode is not None else "does not answer"
                raise ControlPlaneError(SERVER, reason, _end(log))
            time.sleep(0.05)
    except BaseException:
        process.stop()
        raise
    return gateway


def free_port() -> int:
    """A port of loopback that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _answers(gateway: S3Gateway) -> bool:
    try:
        trust = ssl.create_default_context(cadata=gateway.authorities) if gateway.authorities else None
        with urllib.request.urlopen(f"{gateway.endpoint}/health", timeout=2, context=trust) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
