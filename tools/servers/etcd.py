"""A single etcd for a catalog on this machine: on loopback, and only for those who have the client certificate of its
directory (docs/design/catalogs.md#local-etcd).

The program is that of the local control plane; the data survives a crash of any process, and with `sync` also one of
the machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Endpoint, EtcdSettings, Tls
from compaction.local.cluster.certs import LOOPBACK, Authority, ensure_authority, write_private
from compaction.local.cluster.control_plane import log_tail, reserved_port, server_environment
from compaction.local.errors import ControlPlaneError
from compaction.local.processes.process import ProcessId, spawn

SERVER: Final = "etcd"
CLIENT: Final = "catalog"
START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class LocalEtcd:
    """A running etcd: how to reach it, and what to stop."""

    port: int
    authority: Authority
    process: ProcessId

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def tls(self) -> Tls:
        """The files a client needs."""
        folder = self.authority.directory
        return Tls(self.authority.ca, folder / f"{CLIENT}.crt", folder / f"{CLIENT}.key")

    @property
    def settings(self) -> EtcdSettings:
        return EtcdSettings((Endpoint(True, LOOPBACK, self.port),), self.tls)


@contextlib.contextmanager
def start_etcd(directory: Path, program: Path, *, sync: bool = True) -> Iterator[LocalEtcd]:
    """Serve until the block is left. Raises as `serve_etcd`."""
    running = serve_etcd(directory, program, sync=sync)
    try:
        yield running
    finally:
        running.process.stop()


def serve_etcd(directory: Path, program: Path, *, sync: bool = True, detached: bool = False) -> LocalEtcd:
    """Start etcd over the data in `directory`, which is made when it does not exist; certificates in it are used again.
    `detached`: it outlives us; else it ends with the thread that called this.

    Raises:
        ControlPlaneError: it ended, or did not answer within a minute; with the end of its log.
    """
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    authority = ensure_authority(directory / "certificates")
    client = authority.issue_client(CLIENT)
    write_private(authority.directory / f"{CLIENT}.crt", client.certificate)
    write_private(authority.directory / f"{CLIENT}.key", client.key)
    with reserved_port() as port:
        command = etcd_command(program, authority, port, sync=sync)
        log = directory / "etcd.log"
        child = spawn(command, cwd=directory, log=log, env=server_environment(), detached=detached)
        process = ProcessId.of(SERVER, child.pid)
        if process is None:
            raise ControlPlaneError(SERVER, f"ended with {child.wait()}", log_tail(log))
        running = LocalEtcd(port, authority, process)
        try:
            _wait_ready(running, log)
        except BaseException:
            process.stop()
            raise
    return running


def etcd_command(program: Path, authority: Authority, port: int, *, sync: bool) -> list[str]:
    """One member. It has no port for peers, only a socket in its directory."""
    certificate, key = authority.server
    url, peer = f"https://{LOOPBACK}:{port}", "unix://localhost:2380"
    client = authority.directory / f"{CLIENT}.crt", authority.directory / f"{CLIENT}.key"
    return [
        str(program),
        "--data-dir=data",
        "--log-level=warn",
        "--socket-reuse-port=true",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--cert-file={certificate}",
        f"--key-file={key}",
        # The JSON gateway is a client of its own server: it needs a certificate that is one of a client.
        f"--client-cert-file={client[0]}",
        f"--client-key-file={client[1]}",
        "--client-cert-auth",
        f"--trusted-ca-file={authority.ca}",
        *([] if sync else ["--unsafe-no-fsync"]),
    ]


def _wait_ready(running: LocalEtcd, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    client = GatewayClient(running.settings)
    try:
        while not any(status.leader for status in client.status()):
            if not running.process.alive():
                raise ControlPlaneError(SERVER, "ended while starting", log_tail(log))
            if time.monotonic() > deadline:
                raise ControlPlaneError(SERVER, "does not answer", log_tail(log))
            time.sleep(POLL_SECONDS)
    finally:
        client.close()
