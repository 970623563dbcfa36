"""Control groups of a node, on files that look like the kernel's; on the kernel's own: tests/node/test_cgroups.py."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from compaction.local.errors import NodeError
from tools.node import places, prepare

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
