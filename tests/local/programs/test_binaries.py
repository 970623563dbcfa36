"""The order in which programs are looked for and made, and that a set appears complete or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compaction.local.errors import BinaryError
from compaction.local.processes.process import cache_directory
from compaction.local.programs.binaries import Makers, Origin, ensure_binaries, find_binaries

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

    def download(self, place: Path, system: str, machine: str, report) -> None:
        self.calls.append(("download",))
        if not self.archive:
            # Half a set: it must never be seen.
            (place / "etcd").write_text("half")
            raise BinaryError("unreachable")
        self._write(place, ALL)

    def build(self, place: Path, programs: tuple[str, ...], cache: Path, report) -> None:
        self.calls.append(("build", *programs))
        if not self.works:
            (place / "etcd").write_text("half")
            raise BinaryError("compiling failed")
        self._write(place, programs)

    def _write(self, place: Path, programs: tuple[str, ...]) -> None:
        assert self.until is None or self.until.wait(60)
        for program in programs:
            (place / program).write_text("#!/bin/sh\n")
            (place / program).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    return {"PATH": str(tmp_path / "empty"), "COMPACTION_CACHE": str(tmp_path / "cache")}


def test_named_directory_wins_over_path(machine, programs):
    assets, on_path = programs("assets", *ALL), programs("bin", *ALL)
    found = find_binaries(machine | {"KUBEBUILDER_ASSETS": str(assets), "PATH": str(on_path)})
    assert found is not None
    assert (found.origin, found.etcd.parent, found.kubectl.parent) == (Origin.ASSETS, assets, assets)


def test_path_wins_over_the_cache(machine, programs):
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    on_path = programs("bin", *ALL)
    found = find_binaries(machine | {"PATH": str(on_path)})
    assert found is not None
    assert found.origin is Origin.PATH


def test_half_a_set_on_path_is_not_mixed_with_another(machine, programs):
    """An etcd on PATH without a kube-apiserver is some other etcd."""
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    found = find_binaries(machine | {"PATH": str(programs("bin", "etcd"))})
    assert found is not None
    assert found.origin is Origin.CACHE
    assert found.etcd.is_relative_to(machine["COMPACTION_CACHE"])


def test_kubectl_of_the_machine_is_good_enough(machine, programs):
    on_path = programs("bin", "kubectl")
    recorder = Recorder(archive=False)
    made = ensure_binaries(environment=machine | {"PATH": str(on_path)}, makers=recorder.makers)
    assert recorder.calls == [("download",), ("build", "etcd", "kube-apiserver")]
    assert made.kubectl == on_path / "kubectl"


def test_archive_is_preferred_to_a_build(machine):
    recorder = Recorder(archive=True)
    assert ensure_binaries(environment=machine, makers=recorder.makers).origin is Origin.ARCHIVE
    assert recorder.calls == [("download",)]


def test_build_when_the_archive_cannot_be_reached(machine):
    recorder = Recorder(archive=False)
    lines: list[str] = []
    made = ensure_binaries(environment=machine, makers=recorder.makers, report=lines.append)
    assert made.origin is Origin.BUILT
    assert recorder.calls == [("download",), ("build", *ALL)]
    assert any("unreachable" in line for line in lines)


def test_second_time_nothing_is_made(machine):
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    recorder = Recorder(archive=False, build=False)
    assert ensure_binaries(environment=machine, makers=recorder.makers).origin is Origin.CACHE
    assert recorder.calls == []


def test_only_kubectl_is_made_when_only_kubectl_is_missing(machine, programs):
    on_path = programs("bin", "kubectl")
    ensure_binaries(environment=machine | {"PATH": str(on_path)}, makers=Recorder(archive=False).makers)
    recorder = Recorder(archive=False)
    made = ensure_binaries(environment=machine, makers=recorder.makers)
    assert recorder.calls == [("download",), ("build", "kubectl")]
    assert made.kubectl.is_relative_to(machine["COMPACTION_CACHE"])


def test_failure_leaves_nothing_half_made(machine):
    with pytest.raises(BinaryError, match="compiling failed"):
        ensure_binaries(environment=machine, makers=Recorder(archive=False, build=False).makers)
    assert find_binaries(machine) is None
    assert list(Path(machine["COMPACTION_CACHE"], "control-plane").iterdir()) == []
    assert ensure_binaries(environment=machine, makers=Recorder(archive=False).makers).origin is Origin.BUILT


def test_what_a_killed_attempt_left_is_removed(machine):
    cache = Path(machine["COMPACTION_CACHE"])
    for leftover in (cache / ".go-x" / "site", cache / "control-plane" / ".making-x" / "envtest"):
        leftover.mkdir(parents=True)
    ensure_binaries(environment=machine, makers=Recorder(archive=True).makers)
    assert not (cache / ".go-x").exists()
    assert [path.name[0] for path in (cache / "control-plane").iterdir()] == ["e"]


def test_two_at_once_make_it_once(machine):
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


def test_a_wrong_directory_is_an_error_and_not_a_detour(machine, programs):
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
def test_cache_place(environment, expected):
    assert cache_directory(environment) == expected
