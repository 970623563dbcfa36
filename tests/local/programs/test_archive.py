"""A downloaded archive is used only when it is byte for byte the pinned one, and only its three programs are taken."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from compaction.local.errors import BinaryError
from compaction.local.programs import binaries
from compaction.local.programs.gobuild import ENVTEST_SHA512


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


def test_takes_the_three_programs_and_nothing_else(tmp_path, place):
    file = tmp_path / "a.tar.gz"
    names = [f"controller-tools/envtest/{name}" for name in binaries.PROGRAMS]
    checksum = make_archive(file, *names, "../../escape", "controller-tools/envtest/README")
    binaries.unpack(file, place, checksum=checksum)
    assert sorted(path.name for path in place.iterdir()) == sorted(binaries.PROGRAMS)
    assert all(path.stat().st_mode & 0o111 for path in place.iterdir())
    assert not (tmp_path / "escape").exists()


def test_other_checksum_is_refused_before_anything_is_unpacked(tmp_path, place):
    file = tmp_path / "a.tar.gz"
    make_archive(file, *binaries.PROGRAMS)
    with pytest.raises(BinaryError, match="expected 00ff: not used"):
        binaries.unpack(file, place, checksum="00ff")
    assert list(place.iterdir()) == []


def test_incomplete_archive_is_refused(tmp_path, place):
    file = tmp_path / "a.tar.gz"
    checksum = make_archive(file, "etcd")
    with pytest.raises(BinaryError, match="does not hold kube-apiserver, kubectl"):
        binaries.unpack(file, place, checksum=checksum)


@pytest.mark.parametrize("content", [b"", b"not a gzip file", b"\x1f\x8b\x08\x00cut"])
def test_foreign_file_is_refused(tmp_path, place, content):
    file = tmp_path / "a.tar.gz"
    file.write_bytes(content)
    with pytest.raises(BinaryError, match="not a gzipped tar file"):
        binaries.unpack(file, place, checksum=hashlib.sha512(content).hexdigest())


def test_unknown_platform_is_told(place):
    with pytest.raises(BinaryError, match="none is pinned for plan9-mips"):
        binaries.download(place, "plan9", "mips", print)


def test_pinned_checksums_are_whole():
    assert all(len(bytes.fromhex(checksum)) == 64 for checksum in ENVTEST_SHA512.values())
