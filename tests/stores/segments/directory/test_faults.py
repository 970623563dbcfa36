"""Errors of the operating system as errors of ours: what was refused is said as it is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.segments.directory.fs import storage_error
from compaction.segments.errors import LogNotReadableError, LogNotWritableError, SegmentLogError, StoreIOError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet

AS_NOBODY = """
import os, sys
from pathlib import Path
from compaction.segments.directory.fs import storage_errors
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
flags = {"r": os.O_RDONLY, "w": os.O_RDWR, "c": os.O_RDWR | os.O_CREAT}[sys.argv[2]]
with storage_errors(Path("/log")):
    os.open(sys.argv[1], flags)
"""


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that everybody reaches, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "log").mkdir()
        yield Path(name) / "log"
        (Path(name) / "log").chmod(0o755)


@pytest.mark.parametrize(
    ("mode", "parent", "flags", "expected"),
    [
        (0o000, 0o755, "r", "LogNotReadableError"),
        (0o644, 0o000, "r", "LogNotReadableError"),
        (0o444, 0o755, "w", "LogNotWritableError"),
        (None, 0o555, "c", "LogNotWritableError"),
    ],
)
def test_reading_and_writing_are_told_apart(
    reachable: Path, mode: int | None, parent: int, flags: str, expected: str
) -> None:
    file = reachable / "x"
    if mode is not None:
        file.touch()
        file.chmod(mode)
    reachable.chmod(parent)
    ended = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(file), flags], capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"compaction.segments.errors.{expected}: {file}: cannot be "), ended.stderr


@pytest.mark.parametrize("locked", ["snapshots/0000000000000001_0000000000000008", "snapshots/*/indexes"])
def test_a_snapshot_that_may_not_be_read_is_named_with_its_whole_path(reachable: Path, locked: str) -> None:
    with LogWriter(reachable, max_count=8) as writer:
        writer.append_many(range(1, 17), 1, [b"x"] * 16)
    write_snapshot(reachable, index=8, term=1, live=LiveSet.parse("3"))
    next(reachable.glob(locked)).chmod(0)
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from compaction.segments.directory.fs import storage_errors\n"
        "from compaction.segments.reading.view import open_log\n"
        "if os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "with storage_errors(Path(sys.argv[1])):\n    open_log(Path(sys.argv[1]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(reachable)], capture_output=True, text=True, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert f"LogNotReadableError: {reachable}/snapshots/0000000000000001_0000000000000008/" in last, ended.stderr
    for path in reachable.glob("snapshots/*"):
        path.chmod(0o755)


def test_the_words_fit_the_refusal() -> None:
    path = Path("/log")
    read_only = storage_error(OSError(errno.EROFS, os.strerror(errno.EROFS), "x"), path)
    assert isinstance(read_only, LogNotWritableError)
    assert str(read_only).startswith("/log/x: cannot be written (Read-only file system)")
    full = storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path)
    assert isinstance(full, StoreIOError)
    assert str(full).startswith("/log: No space left on device")
    assert "committed" not in str(full)
    assert issubclass(LogNotReadableError, SegmentLogError)
