"""The control plane is a real one with RBAC on, and leaves no process behind, however it ends."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from compaction.cli.local import commands
from compaction.cli.local.commands import group
from compaction.local.cluster import certs, control_plane
from compaction.local.cluster.certs import Authority, ensure_authority, write_private
from compaction.local.cluster.control_plane import (
    AdminClient,
    LocalState,
    default_state_dir,
    read_state,
    remove_state,
    start_control_plane,
    state_file,
    write_state,
)
from compaction.local.errors import ControlPlaneBusyError, ControlPlaneError, LocalStateError
from compaction.local.processes.process import ProcessId, wait_gone
from compaction.local.programs.binaries import Binaries
from conftest import Kubectl
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.control_plane import ControlPlane
from support.faults.proxies import Network, TcpProxy


@pytest.mark.apiserver
def test_answers_as_a_real_api_server(kubectl: Kubectl) -> None:
    version = json.loads(kubectl("version", "-o", "json").stdout)["serverVersion"]
    assert version["gitVersion"].startswith("v1.36.")
    assert kubectl("get", "namespace", "default", "-o", "name").stdout.strip() == "namespace/default"


@pytest.mark.apiserver
def test_namespace_is_fresh_and_usable(namespace: str, kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "thing", "--from-literal=a=1", namespace=namespace)
    assert kubectl("get", "configmap", "thing", "-o", "jsonpath={.data.a}", namespace=namespace).stdout == "1"


@pytest.mark.apiserver
def test_anonymous_and_unprivileged_requests_are_refused(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    assert control_plane.running.anonymous.request("GET", leases).status == 403
    config = control_plane.running.kubeconfig_for("ann", tmp_path / "ann")
    command = [str(control_plane.binaries.kubectl), f"--kubeconfig={config}", "-n", namespace, "get", "leases"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert 'User "ann" cannot list resource "leases"' in refused.stderr


class Counting(TcpProxy):
    """Knows the connections that anything was sent over."""

    def __enter__(self) -> Self:
        self.used: set[frozenset[socket.socket]] = set()
        return super().__enter__()

    def passes(self, source: socket.socket, target: socket.socket, data: bytes) -> bool:
        self.used.add(frozenset({source, target}))
        return True


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Counting]:
    with Counting(("127.0.0.1", int(control_plane.url.rpartition(":")[2]))) as proxy:
        yield proxy


@pytest.mark.apiserver
def test_a_thread_keeps_the_connection_of_a_client_until_it_asks_as_another(
    control_plane: ControlPlane, proxy: Counting
) -> None:
    url = f"https://127.0.0.1:{proxy.port}"
    admin, anonymous = (
        dataclasses.replace(item, url=url) for item in (control_plane.admin, control_plane.running.anonymous)
    )

    def ask() -> None:
        assert admin.request("GET", "/api/v1/namespaces").ok

    for _ in range(3):
        ask()
    assert len(proxy.used) == 1
    other = threading.Thread(target=ask)
    other.start()
    other.join()
    assert len(proxy.used) == 2
    ask()
    assert len(proxy.used) == 2
    assert anonymous.request("GET", "/api/v1/namespaces").status == 403
    assert len(proxy.used) == 3


@pytest.mark.apiserver
def test_a_connection_that_was_cut_is_made_again(control_plane: ControlPlane, proxy: Counting) -> None:
    admin = dataclasses.replace(control_plane.admin, url=f"https://127.0.0.1:{proxy.port}")
    assert admin.request("GET", "/version").ok
    proxy.set(Network.REFUSING)
    eventually(lambda: not answers(admin), "the network to be down")
    proxy.set(Network.UP)
    eventually(lambda: answers(admin), "the network to be up")
    assert len(proxy.used) == 2


def answers(admin: AdminClient) -> bool:
    try:
        return admin.request("GET", "/version").ok
    except OSError:
        return False


@pytest.mark.apiserver
def test_roles_are_honoured(control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
    kubectl("create", "role", "reader", "--verb=list", "--resource=leases", namespace=namespace)
    kubectl("create", "rolebinding", "ann", "--role=reader", "--user=ann", namespace=namespace)
    config = control_plane.running.kubeconfig_for("ann", tmp_path / "ann", namespace=namespace)
    command = [str(control_plane.binaries.kubectl), f"--kubeconfig={config}", "auth", "can-i"]
    for verb, expected in (("list", "yes"), ("create", "no")):
        answer = subprocess.run([*command, verb, "leases"], capture_output=True, text=True, check=False)
        assert answer.stdout.strip() == expected


@pytest.mark.apiserver
def test_etcd_is_out_of_reach_for_others(control_plane: ControlPlane) -> None:
    directory = control_plane.running.directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_ISSOCK((directory / "localhost:2379").stat().st_mode)


@pytest.mark.apiserver
def test_requests_are_audited(control_plane: ControlPlane, kubectl: Kubectl) -> None:
    kubectl("get", "namespace", "kube-public")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "/api/v1/namespaces/kube-public" not in control_plane.running.audit_log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.apiserver
def test_stop_leaves_no_process_and_data_survives(tmp_path: Path, binaries: Binaries) -> None:
    with start_control_plane(tmp_path, binaries) as first:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}
        assert first.admin.request("POST", "/api/v1/namespaces/default/configmaps", body).status == 201
        state = read_state(tmp_path)
        assert state is not None
        assert state.running
    assert not any(process.alive() for process in first.processes)
    assert read_state(tmp_path) is None
    with start_control_plane(tmp_path, binaries) as second:
        assert second.admin.request("GET", "/api/v1/namespaces/default/configmaps/kept").status == 200


@pytest.mark.apiserver
def test_failed_start_shows_the_log_and_leaves_nothing(tmp_path: Path, binaries: Binaries) -> None:
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho 'flag provided but not defined: -x' >&2\nsleep 0.2\nexit 2\n")
    broken.chmod(0o755)
    wrong = Binaries(etcd=binaries.etcd, kube_apiserver=broken, kubectl=binaries.kubectl, origin=binaries.origin)
    with pytest.raises(ControlPlaneError, match=r"kube-apiserver ended.*\n.*flag provided"):
        start_control_plane(tmp_path / "state", wrong)
    assert read_state(tmp_path / "state") is None
    assert _servers_in(tmp_path / "state") == []


@pytest.mark.apiserver
def test_a_foreground_command_takes_everything_with_it_and_up_twice_is_refused(
    tmp_path: Path, binaries: Binaries
) -> None:
    """What a command left behind, also a killed one, does not stand in the way of the next one."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        takes_everything_with_it(tmp_path, signum)
    running = control_plane.up(tmp_path, detached=True)
    with pytest.raises(ControlPlaneBusyError, match="already runs"):
        control_plane.up(tmp_path, detached=True)
    stopped = control_plane.down(tmp_path)
    assert stopped is not None
    assert stopped.processes == running.processes
    assert not any(process.alive() for process in running.processes)


@pytest.mark.apiserver
def test_the_directory_stands_before_or_after_the_verb(tmp_path: Path) -> None:
    nothing = f"no control plane is recorded in {tmp_path}\n"
    shown = CliRunner().invoke(group, ["--state-dir", str(tmp_path)])
    assert (shown.exit_code, shown.output) == (1, nothing)
    (tmp_path / "file").touch()
    for words in (["--state-dir", str(tmp_path / "file"), "down"], ["down", "--state-dir", str(tmp_path / "file")]):
        refused = CliRunner().invoke(group, words)
        assert (refused.exit_code, "is a file" in refused.output) == (2, True), refused.output


@pytest.mark.apiserver
def test_a_check_names_the_programs_and_starts_nothing(
    tmp_path: Path, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["up", "--check", "--state-dir", str(tmp_path)]
    found = CliRunner().invoke(group, words, standalone_mode=False)
    assert found.return_value == 0
    assert str(binaries.etcd) in found.output
    monkeypatch.setattr(commands, "find_binaries", lambda: None)
    absent = CliRunner().invoke(group, words, standalone_mode=False)
    assert absent.return_value == 1
    assert "control plane: not here yet" in absent.output
    assert not list(tmp_path.iterdir())


def takes_everything_with_it(tmp_path: Path, signum: int) -> None:
    """However the command ends."""
    command = [sys.executable, "-m", "compaction.cli.main", "local", "up", "--state-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == f"export KUBECONFIG={tmp_path / 'kubeconfig'}\n"
        state = read_state(tmp_path)
        assert state is not None
        os.kill(child.pid, signum)
        code = child.wait()
    assert code == (-signal.SIGKILL if signum == signal.SIGKILL else 130)
    assert all(wait_gone(process, timeout=PATIENCE_SECONDS) for process in state.processes)
    assert (read_state(tmp_path) is None) == (signum != signal.SIGKILL)


def _servers_in(directory: Path) -> list[ProcessId]:
    """Servers that still run with this working directory, seen from the kernel and not from our own records."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == directory:
                found.append(ProcessId.of(entry.name, int(entry.name)))
        except OSError:
            continue
    return [process for process in found if process is not None]


# The state file: a round trip, and clear errors for what is not one.

STATE = LocalState("https://127.0.0.1:1", Path("/k"), (ProcessId("etcd", 2**22 + 1, "boot:1"),))


def test_round_trip(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE
    remove_state(tmp_path)
    assert read_state(tmp_path) is None


def test_dead_processes_do_not_run(tmp_path: Path) -> None:
    assert not STATE.running
    assert STATE.survivors == ()
    assert not LocalState("https://127.0.0.1:1", Path("/k"), ()).running


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1, "url": "u", "kubeconfig": "k", "processes": [{"pid": "x"}]}',
        "\udcff",
    ],
)
def test_foreign_content_is_named(tmp_path: Path, content: str) -> None:
    state_file(tmp_path).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(LocalStateError, match=r"state\.json"):
        read_state(tmp_path)


def test_down_forgets_what_is_gone_and_says_so(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    assert control_plane.down(tmp_path) == STATE
    assert control_plane.down(tmp_path) is None
    assert control_plane.down(tmp_path / "never") is None


def test_default_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert default_state_dir() == Path("/s/compaction-operator")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_state_dir() == Path.home() / ".local" / "state" / "compaction-operator"


# Certificates: what is in them, who can read them, and when they are made again.


def load(data: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(data)


def test_server_certificate_is_for_loopback_and_signed_by_the_authority(tmp_path: Path) -> None:
    authority = ensure_authority(tmp_path / "c")
    ca, server = load(authority.ca.read_bytes()), load(authority.server[0].read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert server.not_valid_after_utc > dt.datetime.now(dt.UTC) + dt.timedelta(days=300)
    assert server.not_valid_before_utc < dt.datetime.now(dt.UTC)


def test_client_certificate_names_user_and_groups(tmp_path: Path) -> None:
    pair = ensure_authority(tmp_path / "c").issue_client("ann", groups=("dev", "ops"))
    subject = load(pair.certificate).subject
    assert [item.value for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["ann"]
    assert {item.value for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)} == {"dev", "ops"}


def test_a_client_without_groups_is_in_none(tmp_path: Path) -> None:
    """A default organization of a library would be a group that roles can be bound to."""
    subject = load(ensure_authority(tmp_path / "c").issue_client("ann").certificate).subject
    assert subject.rfc4514_string() == "CN=ann"


def test_a_certificate_serves_one_purpose(tmp_path: Path) -> None:
    """Otherwise a client could pose as the API server, and the API server's certificate would be a user's."""
    authority = ensure_authority(tmp_path / "c")
    for pair, purpose in (
        (authority.issue_client("ann", groups=("dev",)), ExtendedKeyUsageOID.CLIENT_AUTH),
        (authority.issue_server(), ExtendedKeyUsageOID.SERVER_AUTH),
    ):
        usage = load(pair.certificate).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]


def test_the_api_server_reads_user_and_groups(control_plane: ControlPlane, tmp_path: Path) -> None:
    for name, groups in (("ann", ()), ("bob", ("dev", "ops"))):
        config = control_plane.running.kubeconfig_for(name, tmp_path / name, groups=groups)
        command = [str(control_plane.binaries.kubectl), f"--kubeconfig={config}", "auth", "whoami", "--output=json"]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert answer["status"]["userInfo"]["username"] == name
        assert set(answer["status"]["userInfo"]["groups"]) == {*groups, "system:authenticated"}


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    ensure_authority(tmp_path / "c")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").iterdir()} == {0o600}


def test_a_good_authority_is_kept(tmp_path: Path) -> None:
    first = ensure_authority(tmp_path / "c").ca.read_bytes()
    assert ensure_authority(tmp_path / "c").ca.read_bytes() == first


def test_interrupted_creation_is_done_again(tmp_path: Path) -> None:
    authority = ensure_authority(tmp_path / "c")
    first = authority.ca.read_bytes()
    authority.server[0].unlink()
    assert ensure_authority(tmp_path / "c").ca.read_bytes() != first
    load(Authority(tmp_path / "c").server[0].read_bytes())


def test_nearly_expired_authority_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "LIFETIME", dt.timedelta(days=29))
    first = ensure_authority(tmp_path / "c").ca.read_bytes()
    monkeypatch.undo()
    assert ensure_authority(tmp_path / "c").ca.read_bytes() != first


def test_private_file_replaces_a_readable_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
