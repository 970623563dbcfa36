"""What the programs of a node are told: no path of the host outside the node's directory, no setting of its kernel."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from compaction.local.programs.binaries import Binaries
from tools.node.places import API_ADDRESS, NODE_ADDRESS, NodeLayout
from tools.node.prepare import Programs
from tools.node.servers import SYSCTLS, servers, sysctl_files, write_identities, write_settings


def test_kernel_settings_are_files_with_the_values_a_kubelet_wants_to_read(tmp_path: Path) -> None:
    layout = NodeLayout(tmp_path)
    write_settings(layout)
    assert {name: int(file.read_text()) for name, file in sysctl_files(layout).items()} == SYSCTLS
    assert all(Path("/proc/sys", name).exists() for name in SYSCTLS)


def test_the_kubelet_asks_the_api_server_about_its_callers(tmp_path: Path) -> None:
    layout = NodeLayout(tmp_path)
    write_settings(layout)
    kubelet = yaml.safe_load((layout.settings / "kubelet.yaml").read_text())
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    assert kubelet["authorization"] == {"mode": "Webhook"}
    assert kubelet["cgroupRoot"] == f"/{layout.cgroup}"
    network = json.loads((layout.settings / "network" / "10-pods.conflist").read_text())
    assert [plugin["ipMasq"] for plugin in network["plugins"]] == [False]
    names = (layout.settings / "names.conf").read_text().splitlines()
    assert f"host-record=kubernetes.default.svc.cluster.local,{API_ADDRESS}" in names
    assert f"listen-address={NODE_ADDRESS}" in names


def test_two_directories_have_two_control_groups() -> None:
    assert NodeLayout(Path("/a")).cgroup != NodeLayout(Path("/b")).cgroup
    assert NodeLayout(Path("/a")).cgroup == NodeLayout(Path("/a")).cgroup


def test_keys_and_kubeconfigs_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    layout = NodeLayout(tmp_path)
    authority = write_identities(layout)
    assert {path.stat().st_mode & 0o777 for path in layout.certificates.iterdir()} == {0o600}
    kubelet = yaml.safe_load((layout.certificates / "kubelet.kubeconfig").read_text())
    assert kubelet["clusters"][0]["cluster"]["server"] == f"https://{NODE_ADDRESS}:443"
    assert authority.directory == layout.certificates


def test_no_secret_is_on_a_command_line(tmp_path: Path, binaries: Binaries) -> None:
    layout = NodeLayout(tmp_path)
    authority = write_identities(layout)
    programs = Programs(binaries, Path("/kcm"), Path("/ks"), Path("/kubelet"))
    found = servers(layout, programs, authority, audit_policy=tmp_path / "audit-policy.yaml")
    assert [server.name for server in found if server.needs_api] == [
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
    ]
    assert not [part for server in found for part in server.command if "BEGIN" in part or "token" in part]
