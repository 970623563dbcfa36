"""A real control plane on loopback: etcd and kube-apiserver with certificates of their own and RBAC on.

Invariants:
* etcd listens on a Unix socket in a directory that only its owner can enter. A TCP port would let any local user write
  past RBAC.
* The API server's port is reserved by a bound socket of ours until the server itself has bound it (both with
  SO_REUSEPORT), so no other process can be given the port in between.
* Every process is stopped by the id it got here, in reverse order of the start: after a failed start, at `stop`, and
  by the kernel when a foreground owner dies.

etcd runs with --unsafe-no-fsync: the data survives a crash of any process, not of the machine. It is a place to try
things out and to test.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from compaction.local.cluster.admin import AdminClient
from compaction.local.cluster.certs import LOOPBACK, Authority, ensure_authority, write_private
from compaction.local.cluster.kubeconfig import write_kubeconfig
from compaction.local.cluster.state import LocalState, remove_state, write_state
from compaction.local.errors import ControlPlaneError
from compaction.local.processes.process import ProcessId, spawn
from compaction.local.programs.binaries import Binaries

READY_TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.1
ETCD_CLIENT = "unix://localhost:2379"
"""A socket *file* of this name in etcd's working directory, reached by a relative path: sun_path holds only 108 bytes.
"""
ETCD_PEER = "unix://localhost:2380"
ADMIN_GROUP = "system:masters"
LOG_TAIL_LINES = 15

AUDIT_POLICY = b"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""


@dataclass(frozen=True, slots=True)
class RunningControlPlane:
    """A control plane that answers: where, how to reach it, and what to stop."""

    directory: Path
    url: str
    kubeconfig: Path
    processes: tuple[ProcessId, ...]
    authority: Authority

    @property
    def admin(self) -> AdminClient:
        certificates = self.authority.directory
        return AdminClient(
            url=self.url, ca=self.authority.ca, certificate=certificates / "admin.crt", key=certificates / "admin.key"
        )

    @property
    def anonymous(self) -> AdminClient:
        return AdminClient(url=self.url, ca=self.authority.ca)

    @property
    def audit_log(self) -> Path:
        return self.directory / "log" / "audit.log"

    def kubeconfig_for(
        self, user: str, path: Path, *, groups: tuple[str, ...] = (), namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig for another user, who may do only what RBAC grants; returns `path`."""
        client = self.authority.issue_client(user, groups=groups)
        write_kubeconfig(path, url=self.url, ca=self.authority.ca.read_bytes(), client=client, namespace=namespace)
        return path

    def stop(self) -> None:
        """Stop everything in reverse order of its start and forget it; safe to call twice."""
        for process in reversed(self.processes):
            process.stop()
        remove_state(self.directory)

    def __enter__(self) -> RunningControlPlane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_control_plane(
    directory: Path,
    binaries: Binaries,
    *,
    detached: bool = False,
    audit: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> RunningControlPlane:
    """Start etcd and kube-apiserver in `directory` and return when the API answers (about two seconds).

    Existing data and certificates in `directory` are used again. The caller makes sure that no other control plane
    runs there (`local.cluster.lifecycle`).

    Raises:
        ControlPlaneError: a server ended or did not become ready; carries the end of its log. Nothing is left running.
    """
    directory = directory.absolute()
    for part in ("etcd", "log"):
        (directory / part).mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    authority = ensure_authority(directory / "certificates")
    started: list[ProcessId] = []
    try:
        with reserved_port() as port:
            url = f"https://{LOOPBACK}:{port}"
            kubeconfig = directory / "kubeconfig"
            write_admin(authority, kubeconfig, url=url)
            running = RunningControlPlane(directory, url, kubeconfig, (), authority)
            for name, command in (
                ("etcd", etcd_command(binaries)),
                (
                    "kube-apiserver",
                    _apiserver(binaries, authority, port=port, audit=running.audit_log if audit else None),
                ),
            ):
                report(f"starting {name}")
                child = _start(name, command, directory=directory, detached=detached)
                started.append(child)
                running = RunningControlPlane(directory, url, kubeconfig, tuple(started), authority)
                write_state(directory, LocalState(url=url, kubeconfig=kubeconfig, processes=running.processes))
            _wait_ready(running)
        return running
    except BaseException:
        # Also for Ctrl-C: a half-started control plane must not outlive the command that wanted it.
        for process in reversed(started):
            process.stop(patience=1.0)
        remove_state(directory)
        raise


def etcd_command(binaries: Binaries) -> list[str]:
    """etcd below its working directory: data in `etcd/`, and no port at all."""
    return [
        str(binaries.etcd),
        "--data-dir=etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={ETCD_CLIENT}",
        f"--advertise-client-urls={ETCD_CLIENT}",
        f"--listen-peer-urls={ETCD_PEER}",
        f"--initial-advertise-peer-urls={ETCD_PEER}",
        f"--initial-cluster=default={ETCD_PEER}",
    ]


def _apiserver(binaries: Binaries, authority: Authority, *, port: int, audit: Path | None) -> list[str]:
    certificate, key = authority.server
    command = [
        str(binaries.kube_apiserver),
        f"--etcd-servers={ETCD_CLIENT}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        "--permit-port-sharing=true",
        # No other API server shares this storage, and an endpoint on loopback would be refused anyway.
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={authority.ca}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={authority.service_accounts}",
        f"--service-account-signing-key-file={authority.service_accounts}",
        # No controller manager runs here to make a default ServiceAccount in each namespace.
        "--disable-admission-plugins=ServiceAccount",
        "--profiling=false",
    ]
    if audit is not None:
        policy = authority.directory / "audit-policy.yaml"
        write_private(policy, AUDIT_POLICY)
        command += [f"--audit-policy-file={policy}", f"--audit-log-path={audit}"]
    return command


def write_admin(authority: Authority, kubeconfig: Path, *, url: str) -> None:
    """An administrator: certificate and key beside the authority's, and a kubeconfig for `url`."""
    admin = authority.issue_client("compaction-admin", groups=(ADMIN_GROUP,))
    write_private(authority.directory / "admin.crt", admin.certificate)
    write_private(authority.directory / "admin.key", admin.key)
    write_kubeconfig(kubeconfig, url=url, ca=authority.ca.read_bytes(), client=admin)


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of loopback that no other process gets until a server listens on it, which shares it (SO_REUSEPORT)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        placeholder.bind((LOOPBACK, 0))
        # Bound but never listening: it takes no connection away from the server that shares the port.
        yield placeholder.getsockname()[1]


def _start(name: str, command: Sequence[str], *, directory: Path, detached: bool) -> ProcessId:
    child = spawn(command, cwd=directory, log=_log(directory, name), detached=detached, env=server_environment())
    process = ProcessId.of(name, child.pid)
    if process is None:
        raise ControlPlaneError(name, f"ended at once with code {child.wait()}", log_tail(_log(directory, name)))
    return process


def server_environment() -> dict[str, str]:
    """What servers inherit."""
    # A user's ETCD_* variables would silently override what is decided here.
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


def _wait_ready(running: RunningControlPlane) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    while True:
        for process in running.processes:
            if not process.alive():
                raise ControlPlaneError(
                    process.name, "ended while starting", log_tail(_log(running.directory, process.name))
                )
        if _answers(running):
            return
        if time.monotonic() > deadline:
            tail = log_tail(_log(running.directory, "kube-apiserver"))
            raise ControlPlaneError("kube-apiserver", f"was not ready after {READY_TIMEOUT_SECONDS:.0f} s", tail)
        time.sleep(POLL_SECONDS)


def _answers(running: RunningControlPlane) -> bool:
    """Ready, and the `default` namespace exists: the server makes it itself a moment after /readyz turns ok."""
    try:
        return (
            running.admin.request("GET", "/readyz", timeout=5).ok
            and running.admin.request("GET", "/api/v1/namespaces/default", timeout=5).ok
        )
    except (OSError, ssl.SSLError):
        return False


def _log(directory: Path, name: str) -> Path:
    return directory / "log" / f"{name}.log"


def log_tail(path: Path) -> str:
    """The last lines of a log; empty when there is none."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]) if path.exists() else ""
