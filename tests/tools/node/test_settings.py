"""What the programs of a node are told: no path of the host outside the node's directory, no setting of its kernel."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import socket
import tarfile
import threading
from pathlib import Path

import pytest
import yaml

from compaction.local.errors import BinaryError, NodeError
from compaction.local.programs.binaries import Binaries
from compaction.local.programs.gobuild import PACKAGES
from tools.node import keeper, places, prepare
from tools.node.places import API_ADDRESS, NODE_ADDRESS, NodeLayout
from tools.node.prepare import NODE_SERVERS, Programs, ensure_programs
from tools.node.running import full_name, mounts_below, write_archive
from tools.node.servers import SYSCTLS, servers, sysctl_files, write_identities, write_settings
from tools.node.start import start_node, stop_node


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


# The parts that touch the host (packages, archives, the relay), as far as no root is needed.


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NodeError, match=r"a node needs root.* run it with sudo"):
        prepare.check_machine()


def test_a_service_manager_would_start_what_is_installed_so_it_is_only_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare, "SERVICE_MANAGER", tmp_path)
    with pytest.raises(NodeError, match=r"apt-get install --no-install-recommends some-package"):
        prepare.ensure_packages({"no-such-program": "some-package"}, report=print)


def test_a_directory_that_the_node_sees_differently_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tools.node.start.check_machine", lambda: None)
    monkeypatch.setattr("tools.node.start.COVERED", (str(tmp_path),))
    with pytest.raises(NodeError, match=f"a node sees another {tmp_path} than its host"):
        start_node(tmp_path / "node")


def test_stopping_where_nothing_runs(tmp_path: Path) -> None:
    assert stop_node(tmp_path / "missing") is None
    assert stop_node(tmp_path) is None
    assert mounts_below(tmp_path) == []
    assert mounts_below(Path("/proc")) != []
    assert places.remaining_cgroups(NodeLayout(tmp_path).cgroup) == []


def test_an_archive_names_its_image_and_its_parts_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    write_archive(path, "localhost/x:1", files={"bin/x": b"program"}, links={"bin/y": "x"}, command=["/bin/x"])
    with tarfile.open(path) as tar:
        content = {member.name: (tar.extractfile(member) or pytest.fail(member.name)).read() for member in tar}
    [image] = json.loads(content["manifest.json"])
    config = json.loads(content[image["Config"]])
    assert image["RepoTags"] == ["localhost/x:1"]
    assert image["Config"] == f"{hashlib.sha256(content[image['Config']]).hexdigest()}.json"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content['layer.tar']).hexdigest()}"]
    assert config["config"]["Entrypoint"] == ["/bin/x"]


def test_the_relay_passes_bytes_both_ways_and_ends_a_call_nobody_answers() -> None:
    """In the namespace of this process itself: moving between namespaces needs root, and is tested on the node."""
    target = socket.create_server(("127.0.0.1", 0))
    server = keeper.listen()
    thread = threading.Thread(target=lambda: asyncio.run(keeper.accept(server, target.getsockname())), daemon=True)
    thread.start()
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(b"question")
        inner, _ = target.accept()
        with inner:
            assert inner.recv(100) == b"question"
            inner.sendall(b"answer")
        assert client.recv(100) == b"answer"
        assert client.recv(100) == b""
    target.close()
    with socket.create_connection(server.getsockname()) as client:
        assert client.recv(100) == b""


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("worker:1", "docker.io/library/worker:1"),
        ("team/worker:1", "docker.io/team/worker:1"),
        ("localhost/worker:1", "localhost/worker:1"),
        ("registry.example:5000/worker:1", "registry.example:5000/worker:1"),
    ],
)
def test_names_of_images_are_those_that_a_kubelet_asks_for(name: str, full: str) -> None:
    assert full_name(name) == full


# The programs of a node: one set in the cache, complete or not at all.


def environment_with(cache: Path, binaries: Binaries) -> dict[str, str]:
    """A cache of its own, and the control plane that the machine has."""
    assets = cache / "assets"
    assets.mkdir(parents=True)
    for program in (binaries.etcd, binaries.kube_apiserver, binaries.kubectl):
        (assets / program.name).symlink_to(program)
    return {"COMPACTION_CACHE": str(cache), "KUBEBUILDER_ASSETS": str(assets), "PATH": ""}


def writer(place: Path, programs: tuple[str, ...], *_: object) -> None:
    for name in programs:
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)


def test_they_are_made_once_and_found_again(tmp_path: Path, binaries: Binaries) -> None:
    environment = environment_with(tmp_path, binaries)
    made = ensure_programs(environment=environment, build=writer)
    assert [path.name for path in (made.kube_controller_manager, made.kube_scheduler, made.kubelet)] == [*NODE_SERVERS]

    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be built")

    assert ensure_programs(environment=environment, build=refuse) == made


def test_a_failed_build_leaves_nothing_that_looks_complete(tmp_path: Path, binaries: Binaries) -> None:
    environment = environment_with(tmp_path, binaries)

    def half(place: Path, programs: tuple[str, ...], *rest: object) -> None:
        writer(place, programs[:1], *rest)
        raise BinaryError("compiling kubelet failed")

    with pytest.raises(BinaryError, match="compiling kubelet failed"):
        ensure_programs(environment=environment, build=half)
    assert list((tmp_path / "control-plane").iterdir()) == []
    assert ensure_programs(environment=environment, build=writer).kubelet.exists()


def test_each_is_built_from_the_module_of_the_api_server() -> None:
    """Another module, or other flags, and everything would be compiled twice."""
    module = PACKAGES["kube-apiserver"][0]
    assert {PACKAGES[name][0] for name in NODE_SERVERS} == {module}


# Control groups of a node, on files that look like the kernel's; on the kernel's own: tests/node/test_cgroups.py.

CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc"


@pytest.fixture
def version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One hierarchy per controller, and version 2 beside them with what is left, as systemd's hybrid layout has it."""
    for name in ("memory", "cpu", "cpuset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.clone_children").touch()
    for setting in ("cpuset.cpus", "cpuset.mems"):
        (tmp_path / "cpuset" / setting).write_text("0-1\n")
        (tmp_path / "cpuset" / "node").mkdir(exist_ok=True)
        (tmp_path / "cpuset" / "node" / setting).write_text("\n")
    (tmp_path / "cpu" / "node").mkdir()
    (tmp_path / "cpu" / "node" / "cpu.shares").write_text("1024\n")
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    monkeypatch.setattr(places, "CGROUP_ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one hierarchy, as systemd leaves it."""
    (tmp_path / "cgroup.controllers").write_text(f"{CONTROLLERS}\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "system.slice").mkdir()
    monkeypatch.setattr(places, "CGROUP_ROOT", tmp_path)
    return tmp_path


def test_of_version_1_every_hierarchy_counts_and_only_those(version_1: Path) -> None:
    assert places.hierarchies() == [version_1 / "cpu", version_1 / "cpuset", version_1 / "memory"]
    assert not places.is_unified()
    assert places.missing_controllers() == ()


def test_of_version_1_each_hierarchy_gets_a_parent_with_processors(version_1: Path) -> None:
    assert places.create_cgroups("node") == ()
    assert places.remaining_cgroups("node") == [version_1 / name / "node" for name in ("cpu", "cpuset", "memory")]
    assert (version_1 / "cpuset" / "node" / "cpuset.cpus").read_text() == "0-1\n"
    (version_1 / "unified" / "node").mkdir()
    assert version_1 / "unified" / "node" in places.remaining_cgroups("node"), (
        "the container runtime makes one there too"
    )


def test_of_version_1_the_pods_have_the_share_that_they_have_on_a_machine_of_their_own(
    version_1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many processes' as there are processors: beside eight others, pods would wait for a ninth of one."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    places.create_cgroups("node")
    assert (version_1 / "cpu" / "node" / "cpu.shares").read_text() == "2048"


def test_of_version_2_the_parent_gets_every_controller_that_a_kubelet_asks_for(version_2: Path) -> None:
    assert places.is_unified()
    assert places.missing_controllers() == ()
    switched_on = places.create_cgroups("node")
    assert switched_on == ("cpuset", "hugetlb", "io"), "what the root hands down already is left alone"
    assert (version_2 / "cgroup.subtree_control").read_text() == "+cpuset +hugetlb +io"
    assert (version_2 / "node" / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids +hugetlb +io"
    assert places.remaining_cgroups("node") == [version_2 / "node"]


def test_of_version_2_nothing_is_switched_on_that_is_on(version_2: Path) -> None:
    (version_2 / "cgroup.subtree_control").write_text(CONTROLLERS)
    assert places.create_cgroups("node") == ()
    assert (version_2 / "cgroup.subtree_control").read_text() == CONTROLLERS


def test_of_version_2_removal_switches_off_what_was_switched_on(version_2: Path) -> None:
    (version_2 / "node" / "kubepods").mkdir(parents=True)
    assert places.remove_cgroups("node", switched_on=("cpuset",)) == []
    assert not (version_2 / "node").exists()
    assert (version_2 / "cgroup.subtree_control").read_text() == "-cpuset"
    assert (version_2 / "system.slice").exists()


def test_of_version_2_what_cannot_be_removed_is_named_and_keeps_its_controllers(version_2: Path) -> None:
    (version_2 / "node").mkdir()
    (version_2 / "node" / "busy").touch()
    assert places.remove_cgroups("node", switched_on=("cpuset",), timeout=0.0) == [version_2 / "node"]
    assert (version_2 / "cgroup.subtree_control").read_text() == "cpu memory pids\n"


def test_a_root_with_processes_of_its_own_is_refused_with_a_way_out(
    version_2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's answer in a container with a control group namespace of its own."""

    def busy(self: Path, text: str) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(self))

    monkeypatch.setattr(Path, "write_text", busy)
    with pytest.raises(NodeError, match=rf"{version_2} is the control group of running processes.*--cgroupns=host"):
        places.create_cgroups("node")
    assert not (version_2 / "node").exists()


@pytest.mark.parametrize(
    ("controllers", "lacking"), [("cpuset cpu io memory", "pids"), ("", "cpu, cpuset, memory, pids")]
)
def test_a_machine_without_the_controllers_says_which(
    version_2: Path, monkeypatch: pytest.MonkeyPatch, controllers: str, lacking: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (version_2 / "cgroup.controllers").write_text(controllers)
    with pytest.raises(NodeError, match=f"a node needs the control group controllers {lacking} below {version_2}"):
        prepare.check_machine()


def test_a_machine_with_neither_version_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(places, "CGROUP_ROOT", tmp_path)
    with pytest.raises(NodeError, match="neither version 1 nor version 2 has them there"):
        prepare.check_machine()
