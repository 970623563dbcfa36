"""The parts that touch the host (packages, archives, the relay), as far as no root is needed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import tarfile
import threading
from pathlib import Path

import pytest

from compaction.local.errors import NodeError
from tools.node import keeper, places, prepare
from tools.node.places import NodeLayout
from tools.node.running import full_name, mounts_below, write_archive
from tools.node.start import start_node, stop_node


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
