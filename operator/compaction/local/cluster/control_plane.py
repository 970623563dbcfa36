"""A real control plane on loopback: etcd and kube-apiserver with certificates and RBAC; its state file, its up and
down.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import yaml

from compaction.local.cluster.certs import LOOPBACK, Authority, KeyPair, ensure_authority, write_private
from compaction.local.errors import ControlPlaneBusyError, ControlPlaneError, LocalStateError
from compaction.local.processes.process import ProcessId, exclusive, spawn
from compaction.local.programs.binaries import Binaries, ensure_binaries

# The state file of a local control plane: what runs, so that another command can find, inspect and stop it.
#
# Layout of a state directory (0700): `state.json`, `kubeconfig`, `certificates/`, `etcd/` (the data), `log/`,
# `run.lock`. The file is written before the first process starts to serve and replaced atomically; it is removed when
# everything it names is gone.

VERSION = 1
LARGEST_PID = 2**31 - 1


def default_state_dir() -> Path:
    """`${XDG_STATE_HOME:-~/.local/state}/compaction-operator`: where `compactor local` keeps its control plane."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "compaction-operator"


@dataclass(frozen=True, slots=True)
class LocalState:
    """The processes that `compactor local` started: the server's `url`, the file to reach it, the processes in the
    order of their start.
    """

    url: str
    kubeconfig: Path
    processes: tuple[ProcessId, ...]

    @property
    def running(self) -> bool:
        return bool(self.processes) and all(process.alive() for process in self.processes)

    @property
    def survivors(self) -> tuple[ProcessId, ...]:
        """The processes that still run, in the order of their start."""
        return tuple(process for process in self.processes if process.alive())


def state_file(directory: Path) -> Path:
    return directory / "state.json"


def write_state(directory: Path, state: LocalState) -> None:
    document = {
        "version": VERSION,
        "url": state.url,
        "kubeconfig": str(state.kubeconfig),
        "processes": [asdict(process) for process in state.processes],
    }
    write_private(state_file(directory), json.dumps(document, indent=2).encode())


def read_state(directory: Path) -> LocalState | None:
    """The recorded state, or None when nothing was recorded.

    Raises:
        LocalStateError: the file is there but is not one of ours.
    """
    path = state_file(directory)
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise LocalStateError(str(path), f"not JSON ({error})") from error
    try:
        if document["version"] != VERSION:
            raise LocalStateError(str(path), f"its version is unknown, expected {VERSION}")
        processes = tuple(
            ProcessId(name=str(item["name"]), pid=int(item["pid"]), started=str(item["started"]))
            for item in document["processes"]
        )
        if not all(1 < process.pid <= LARGEST_PID for process in processes):
            raise LocalStateError(str(path), "a process number is out of range")
        return LocalState(url=str(document["url"]), kubeconfig=Path(document["kubeconfig"]), processes=processes)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LocalStateError(str(path), f"a field is missing or malformed ({type(error).__name__})") from error


def remove_state(directory: Path) -> None:
    state_file(directory).unlink(missing_ok=True)


# A very small blocking client for the local control plane: start-up probes and fixtures, before and beside the
# operator's own client.
#
# JSON in and out, HTTP errors are answers and not exceptions. Each thread keeps the connection of its last request: a
# handshake costs client and server five times what a request does, and who waits for something asks again and again.

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """An HTTP answer: `status` code and the raw `text`."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class AdminClient:
    """Requests to `url` as the owner of the client certificate in `certificate`/`key` (without one: anonymous)."""

    url: str
    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float = TIMEOUT_SECONDS,
    ) -> AdminAnswer:
        """Send one request. Raises OSError (refused, reset, timeout) when there is no answer at all."""
        connection = _connection(self, timeout)
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            return AdminAnswer(status=answer.status, text=answer.read().decode())
        except http.client.HTTPException as error:
            connection.close()
            raise ConnectionError(f"{self.url}: {error!r}") from error
        except BaseException:
            # Half of an answer may be left in it.
            connection.close()
            raise

    def connect(self) -> http.client.HTTPSConnection:
        """A connection; its first request opens it, and the next one opens it again once it is closed."""
        target = urlsplit(self.url)
        return http.client.HTTPSConnection(target.hostname or "", target.port, context=self._context())

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(eq=False, slots=True)
class _Kept:
    """The connection that a thread keeps, of which process and client; closed when the thread ends."""

    process: int
    client: AdminClient
    connection: http.client.HTTPSConnection

    def __del__(self) -> None:
        self.connection.close()


_of_thread = threading.local()


def _connection(client: AdminClient, timeout: float) -> http.client.HTTPSConnection:
    """The one that is kept, if it is this client's; closed if the server has closed it, or says anything unasked."""
    kept: _Kept | None = getattr(_of_thread, "kept", None)
    if kept is None or kept.process != os.getpid() or kept.client != client:
        kept = _of_thread.kept = _Kept(os.getpid(), client, client.connect())
    connection = kept.connection
    if connection.sock is not None and _has_input(connection.sock):
        connection.close()
    connection.timeout = timeout
    if connection.sock is not None:
        connection.sock.settimeout(timeout)
    return connection


def _has_input(sock: socket.socket) -> bool:
    # Not select.select: it refuses descriptors above 1023, of which a process with many logs has some.
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    return bool(waiting.poll(0))


# Kubeconfig files of the local control plane: self-contained, readable by their owner only.

NAME = "compaction-local"


def write_kubeconfig(path: Path, *, url: str, ca: bytes, client: KeyPair, namespace: str = "default") -> None:
    """Write a kubeconfig that reaches `url` with the client certificate; certificates are embedded, so the file can be
    copied.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": {"server": url, "certificate-authority-data": _base64(ca)}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": namespace}}],
        "users": [
            {
                "name": NAME,
                "user": {
                    "client-certificate-data": _base64(client.certificate),
                    "client-key-data": _base64(client.key),
                },
            }
        ],
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# A real control plane on loopback: etcd and kube-apiserver with certificates of their own and RBAC on.
#
# Invariants:
# * etcd listens on a Unix socket in a directory that only its owner can enter. A TCP port would let any local user
#   write past RBAC.
# * The API server's port is reserved by a bound socket of ours until the server itself has bound it (both with
#   SO_REUSEPORT), so no other process can be given the port in between.
# * Every process is stopped by the id it got here, in reverse order of the start: after a failed start, at `stop`, and
#   by the kernel when a foreground owner dies.
#
# etcd runs with --unsafe-no-fsync: the data survives a crash of any process, not of the machine. It is a place to try
# things out and to test.

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
    runs there (`local.cluster.control_plane`).

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
    """Return the environment that servers inherit."""
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


# Up, down and status of the control plane in a state directory; what the commands, the demo and the tests share.
#
# One control plane per directory: starting and stopping happen under `run.lock`, so two commands at once agree on one
# server.

Report = Callable[[str], None]


def up(directory: Path, *, detached: bool, audit: bool = False, report: Report = lambda _: None) -> RunningControlPlane:
    """Make the programs ready and start a control plane in `directory`.

    Raises:
        ControlPlaneBusyError: one already runs there.
        BinaryError, ControlPlaneError: it could not be started; nothing is left running.
    """
    binaries = ensure_binaries(report=report)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with exclusive(directory / "run.lock", what=f"starting the control plane in {directory}", report=report):
        state = read_state(directory)
        if state is not None and state.running:
            raise ControlPlaneBusyError(f"a control plane already runs in {directory}: KUBECONFIG={state.kubeconfig}")
        if state is not None:
            _stop(state)
        return start_control_plane(directory, binaries, detached=detached, audit=audit, report=report)


def down(directory: Path, *, report: Report = lambda _: None) -> LocalState | None:
    """Stop what is recorded in `directory`, exactly those processes; None when nothing was recorded. The data stays."""
    if not directory.is_dir():
        return None
    with exclusive(directory / "run.lock", what=f"stopping the control plane in {directory}", report=report):
        state = read_state(directory)
        if state is not None:
            _stop(state)
            remove_state(directory)
        return state


def status(directory: Path) -> LocalState | None:
    """Return what is recorded in `directory`; its `running` says whether all of it still runs."""
    return read_state(directory)


def _stop(state: LocalState) -> None:
    for process in reversed(state.processes):
        process.stop()
