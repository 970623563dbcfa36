"""The programs of a node: one set in the cache, complete or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.local.errors import BinaryError
from compaction.local.programs.binaries import Binaries
from compaction.local.programs.gobuild import PACKAGES
from tools.node.prepare import NODE_SERVERS, ensure_programs


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
