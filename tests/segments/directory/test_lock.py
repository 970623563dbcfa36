"""The lock file against strange files under its name, against copies by hard link, and against its own deletion."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.segments.commit import fence
from compaction.segments.directory import lock
from compaction.segments.directory.fs import storage_error
from compaction.segments.errors import (
    LockFileError,
    LockHeldError,
    LockLostError,
    LogNotReadableError,
    LogNotWritableError,
    SegmentLogError,
    StoreIOError,
)
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.generate import generate_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import DyingFilesystem, SuddenDeath


def held_by(directory: Path, content: str | bytes) -> int:
    """An open descriptor that holds the lock of a file with this content."""
    path = directory / lock.LOCK_FILE
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


NOTE = '{"holder":"%s","job":"","pid":4711,"host":"box","since":%s}'


@pytest.mark.parametrize(
    "content",
    [NOTE % ("h", t) for t in ("1e300", "Infinity", "NaN", "-1e18", '"x"', "[]")]
    + ["[" * 200_000, "[]", '"x"', "", b"\xff\xfe", '{"holder":1,"job":2,"pid":"x","host":[],"since":1}'],
    ids=lambda content: content[:60],
)
def test_a_note_that_says_nothing_is_an_unknown_process(tmp_path: Path, content: str | bytes) -> None:
    fd = held_by(tmp_path, content)
    with pytest.raises(LockHeldError, match="by an unknown process"), lock.hold(tmp_path, holder="x", timeout=0):
        pass
    os.close(fd)


def test_the_message_says_what_to_do_and_is_plain_text(tmp_path: Path) -> None:
    fd = held_by(tmp_path, NOTE % ("\\u001b[2J evil\\n", "1"))
    with pytest.raises(LockHeldError) as caught, lock.hold(tmp_path, holder="x", timeout=0):
        pass
    message = str(caught.value)
    assert message.isprintable()
    assert "by \\x1b[2J evil\\n (pid 4711 on box) since 1970-01-01" in message
    assert "never delete this file; end pid 4711 on box instead" in message
    os.close(fd)


def test_only_the_beginning_of_a_huge_file_is_read(tmp_path: Path) -> None:
    fd = held_by(tmp_path, "x")
    os.truncate(tmp_path / lock.LOCK_FILE, 1 << 40)
    with pytest.raises(LockHeldError, match="unknown"), lock.hold(tmp_path, holder="x", timeout=0):
        pass
    os.close(fd)


def test_something_else_under_the_name_is_refused_at_once(tmp_path: Path) -> None:
    path, before = tmp_path / lock.LOCK_FILE, set(lock._held)
    os.mkfifo(path)
    code = (
        "import sys; from pathlib import Path; from compaction.segments.directory import lock\n"
        "with lock.hold(Path(sys.argv[1]), holder='x', timeout=0): pass"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "LockFileError" in ended.stderr
    with pytest.raises(LockFileError, match=r"compaction\.lock.*not a regular file"), lock.hold(tmp_path, holder="x"):
        pass
    assert lock._held == before


def test_a_copy_by_hard_link_gets_a_lock_of_its_own(tmp_path: Path) -> None:
    """`cp -al` gives both directories one lock file: each would keep the other one out."""
    log, copy = tmp_path / "log", tmp_path / "copy"
    log.mkdir()
    copy.mkdir()
    with lock.hold(log, holder="first"):
        os.link(log / lock.LOCK_FILE, copy / lock.LOCK_FILE)
        with pytest.raises(LockHeldError), lock.hold(copy, holder="x", timeout=0):
            pass
    with lock.hold(copy, holder="of the copy"):
        assert not os.path.samefile(log / lock.LOCK_FILE, copy / lock.LOCK_FILE)
        assert "of the copy" not in (log / lock.LOCK_FILE).read_text()
        with lock.hold(log, holder="of the log", timeout=0):
            pass
        with pytest.raises(LockHeldError, match="of the copy"), lock.hold(copy, holder="x", timeout=0):
            pass
    assert os.listdir(copy) == [lock.LOCK_FILE]


def test_nobody_is_told_to_end_a_process_that_has_finished(tmp_path: Path) -> None:
    """A program like flock(1) holds the lock and signs nothing; what the last holder wrote is not about it."""
    with lock.hold(tmp_path, holder="finished"):
        assert "finished" in (tmp_path / lock.LOCK_FILE).read_text()
    for shared in (False, True):
        fd = os.open(tmp_path / lock.LOCK_FILE, os.O_RDWR)
        if shared:
            os.write(fd, (NOTE % ("finished", "1")).encode())
            os.link(tmp_path / lock.LOCK_FILE, tmp_path / "copy")
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(LockHeldError, match="unknown"), lock.hold(tmp_path, holder="x", timeout=0):
            pass
        os.close(fd)


def test_a_forked_child_touches_no_file_that_got_the_locks_number(tmp_path: Path) -> None:
    """Its copy of the descriptor is closed; the number is reused; then it leaves the block as well."""
    other = tmp_path / "other"
    other.write_text("precious")
    status, child = 1, -1
    try:
        with lock.hold(tmp_path, holder="parent") as held:
            child = os.fork()
            if child:
                _, ended = os.waitpid(child, 0)
            else:
                os.dup2(os.open(other, os.O_RDWR), held.fd)  # which number is free depends on who else has files open
        if not child:
            status = 0 if os.path.samestat(os.fstat(held.fd), os.stat(other)) else 2
    finally:
        if not child:
            os._exit(status)  # whatever happened: a second pytest would go on with the tests
    assert os.waitstatus_to_exitcode(ended) == 0
    assert other.read_text() == "precious"


def test_a_hard_link_to_somebodys_file_is_not_written(tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "log"
    victim.write_text("precious")
    log.mkdir()
    os.link(victim, log / lock.LOCK_FILE)
    with DyingFilesystem() as counter, lock.hold(log, holder="x"):
        pass
    assert victim.read_text() == "precious"
    for number in range(len(counter.calls)):
        for when in ("before", "after"):
            (log / lock.LOCK_FILE).unlink()
            os.link(victim, log / lock.LOCK_FILE)
            with DyingFilesystem(at=number, when=when), pytest.raises(SuddenDeath), lock.hold(log, holder="x"):
                pass
            with lock.hold(log, holder="x", timeout=0) as held:
                held.verify()
                with pytest.raises(LockHeldError), lock.hold(log, holder="y", timeout=0):
                    pass
            assert victim.read_text() == "precious"
            assert os.listdir(log) == [lock.LOCK_FILE]


def test_a_shared_file_that_cannot_be_replaced_still_excludes(tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "log"
    victim.write_text("precious")
    log.mkdir()
    os.link(victim, log / lock.LOCK_FILE)
    with DyingFilesystem(at=0, error=OSError(30, "read-only"), lasting=True), lock.hold(log, holder="x") as held:
        held.verify()
        with pytest.raises(LockHeldError), lock.hold(log, holder="y", timeout=0):
            pass
    assert victim.read_text() == "precious"
    assert os.path.samefile(victim, log / lock.LOCK_FILE)


def test_waiters_of_the_shared_file_notice_that_it_was_replaced(tmp_path: Path) -> None:
    """A process that opened the shared file before waits for it, gets it, and finds that the name is another file."""
    victim, log = tmp_path / "victim", tmp_path / "log"
    victim.write_text("")
    log.mkdir()
    os.link(victim, log / lock.LOCK_FILE)
    early = os.open(log / lock.LOCK_FILE, os.O_RDWR)
    with lock.hold(log, holder="x"):
        fcntl.flock(early, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not os.path.samestat(os.fstat(early), os.stat(log / lock.LOCK_FILE))
    os.close(early)


def test_a_lock_that_was_deleted_is_noticed(tmp_path: Path) -> None:
    with lock.hold(tmp_path, holder="x") as held:
        held.verify()
        (tmp_path / lock.LOCK_FILE).unlink()
        with pytest.raises(LockLostError, match=r"compaction\.lock.*[Nn]ever delete"):
            held.verify()
        with lock.hold(tmp_path, holder="y", timeout=0), pytest.raises(LockLostError):
            held.verify()


@pytest.mark.parametrize(("mode", "written"), [(0o755, 0o644), (0o775, 0o664), (0o1777, 0o644)])
def test_lock_and_fence_belong_to_whom_the_directory_belongs(tmp_path: Path, mode: int, written: int) -> None:
    """One run as root would else lock the log's owner out."""
    log = tmp_path / "log"
    generate_log(log, segments=2, entries_per_segment=8, payload_bytes=64, sync=False)
    uid, gid = (999, 998) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(log, uid, gid)
    log.chmod(mode)
    (log / lock.LOCK_FILE).touch(0o644)
    fence.claim(log, job="job", token=1, holder="test")
    for name in (lock.LOCK_FILE, fence.FENCE_FILE):
        found = (log / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (uid, gid, written), name


# Errors of the operating system as errors of ours: what was refused is said as it is.

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
