"""Directories that somebody made to break us: a clear error names the object, nothing is lost, the siblings go on."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from compaction.api.policy.policy import CompactionPolicySpec
from compaction.core.planning.debt import ScanResult, TargetProblem
from compaction.errors import CompactionError
from compaction.segments.errors import NotALogDirectoryError
from compaction.segments.generate import generate_log
from compaction.segments.model import segment_name
from compaction.segments.scan.find import LogErrorReason
from compaction.segments.scan.sense import SenseResult, SenseSettings, sense_root
from compaction.segments.snapshot.directories import SNAPSHOTS, find_snapshots, write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.storage.adapter import SenseRequest, open_store
from fuzz.segment_targets import ALLOWED_KIB, memory_of_a_look
from support.cluster.world import PlainCluster
from support.faults.sudden_death import before_call
from support.faults.unprivileged import as_nobody
from support.segments.segment_logs import compact_all, content
from support.timing import at_depth, each_call


def make(directory: Path) -> Path:
    generate_log(directory, segments=4, entries_per_segment=8, payload_bytes=16, sync=False)
    return directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not pytest's own: that one is closed to other accounts, and every pytest that starts closes it again. In memory
    where there is such a place: thousands of logs are made here, and no disk is tested.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="hostile-", dir=memory) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two logs; `good` is never touched by the test, so it must be seen and planned whatever happens to `bad`."""
    for name in ("bad", "good"):
        make(tmp_path / "root" / name)
    return tmp_path / "root"


def look(root: Path) -> SenseResult:
    """One look; `good` is in it."""
    result = sense_root(root, SenseSettings())
    assert [log.path.name for log in result.logs if log.plan.groups and log.path.name == "good"] == ["good"]
    return result


def told(result: SenseResult) -> list[tuple[str, LogErrorReason]]:
    return [(error.path.name, error.reason) for error in result.errors]


# --- what else may have a segment's name ---


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # relative: a socket's address is short


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "directory": os.mkdir,
    "device": lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5)),
}


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "device"])
@pytest.mark.parametrize("name", [segment_name(2), segment_name(9), "snapshots", "compaction.fence"])
def test_what_is_no_file_is_named_and_never_waited_for(root: Path, kind: str, name: str) -> None:
    """A FIFO without a writer would keep whoever opens it waiting for ever."""
    victim = root / "bad" / name
    if victim.is_dir():
        shutil.rmtree(victim)
    victim.unlink(missing_ok=True)
    KINDS[kind](victim)
    result = look(root)
    known = {log.path.name: log for log in result.logs}
    if (kind, name) == ("directory", SNAPSHOTS):
        assert known["bad"].plan.groups == ()  # no snapshot: everything is needed
        return
    assert "bad" not in known
    assert any(str(victim) in error.message for error in result.errors)


# --- symbolic links ---


def test_links_in_a_circle_lead_nowhere(root: Path) -> None:
    (root / "circle").symlink_to("circle")
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "bad" / segment_name(7)).symlink_to(segment_name(7))
    assert told(look(root)) == []
    with pytest.raises(NotALogDirectoryError):
        SegmentLogStore(root).directory("circle/log")


def test_a_link_to_the_root_itself_is_not_walked_for_ever(root: Path) -> None:
    (root / "bad" / "up").symlink_to("..")
    assert [log.path.name for log in look(root).logs] == ["bad", "good"]


def test_a_link_out_is_refused_and_nothing_behind_it_is_read(root: Path, tmp_path: Path) -> None:
    outside = make(tmp_path / "outside")
    (root / "bad" / "out").symlink_to(outside)
    (error,) = look(root).errors
    assert (error.path, error.reason) == (root / "bad" / "out", LogErrorReason.OUTSIDE_ROOT)
    store = SegmentLogStore(root)
    for way in ("bad/out", "../outside", str(outside), "good/../../outside"):
        with pytest.raises(NotALogDirectoryError, match="not inside"):
            store.claim(way, job="j", token=1)
    assert not (outside / "compaction.lock").exists()


def test_a_log_replaced_by_a_link_out_after_it_was_found_is_not_touched(root: Path, tmp_path: Path) -> None:
    store, outside = SegmentLogStore(root), make(tmp_path / "outside")
    found = store.sense().logs[0].path
    shutil.rmtree(found)
    found.symlink_to(outside)
    before = sorted(os.listdir(outside))
    for act in (store.recover, store.plan, lambda log: store.sweep(log, grace_seconds=0)):
        with pytest.raises(NotALogDirectoryError):
            act(found)
    assert sorted(os.listdir(outside)) == before


def test_a_root_that_becomes_a_link_is_what_it_links_to(root: Path, tmp_path: Path) -> None:
    store = SegmentLogStore(root)
    assert len(store.sense().logs) == 2
    moved = root.rename(tmp_path / "moved")
    root.symlink_to(moved)
    assert [log.path for log in store.sense().logs] == [root / "bad", root / "good"]
    store.claim("good", job="j", token=1)
    root.unlink()
    root.symlink_to(root)
    (error,) = store.sense().errors
    assert error.path == root
    with pytest.raises(CompactionError):
        store.claim("good", job="j", token=2)


# --- names ---


@pytest.mark.parametrize(
    "name",
    [b"new\nline", b"\x1b[2J", b"not-utf8-\xff", b"gpj.\xe2\x80\xaetxt", b"\xc2\x9b31m"],
    ids=["newline", "escape", "bytes", "bidi", "c1"],
)
def test_a_name_that_writes_on_the_terminal_is_refused_in_plain_text(root: Path, name: bytes) -> None:
    make(root / os.fsdecode(name))
    (error,) = look(root).errors
    assert error.reason is LogErrorReason.LOG_INVALID
    assert "rename it" in error.message
    assert error.message.isprintable()
    assert str(error.path).isprintable()


@pytest.mark.parametrize("name", ["-rf", "--help", "a b", "логи", "аdmin", "x" * 255, "$(id)", "%s", "{}", "'", "~"])
def test_an_unusual_name_is_only_a_name(root: Path, name: str) -> None:
    log = make(root / name)
    before = content(log)
    assert {found.path.name for found in look(root).logs} == {"bad", "good", name}
    compact_all(SegmentLogStore(root), log)
    assert content(log) == before


def test_a_directory_deeper_than_a_path_can_name_is_told_and_fits_into_status(root: Path) -> None:
    fd = os.open(root, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 255, dir_fd=fd)
        below = os.open("d" * 255, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    (error,) = look(root).errors
    assert error.reason is LogErrorReason.INPUT_OUTPUT
    world = PlainCluster()
    world.problems = (TargetProblem(str(error.path), error.reason, error.message),)
    world.settle()
    world.wall += 1
    world.settle()
    assert world.policy is not None
    (said,) = world.policy.status.target_errors
    assert len(said.target) == 4096


def test_errors_on_the_command_line_are_plain_text(root: Path) -> None:
    """Whatever the path of a log is, what is printed about it has no control characters and no traceback."""
    log = make(root / os.fsdecode(b"\x1b[2J\xff\n"))
    (log / segment_name(2)).write_bytes(b"RASG")
    for command in (["inspect", str(log)], ["inspect", "-o", "yaml", str(log)], ["inspect", "-o", "json", str(log)],
                    ["plan", str(log)], ["list", str(log)], ["inspect", str(log) + "-gone"]):  # fmt: skip
        answer = subprocess.run(
            [sys.executable, "-m", "compaction.cli.main", "segments", *command], capture_output=True, check=False
        )
        assert answer.returncode in (1, 2), (command, answer)
        for output in (answer.stdout, answer.stderr):
            text = output.decode()
            assert "Traceback" not in text
            assert all(line.isprintable() for line in text.splitlines()), (command, text)


# --- numbers that only the format can hold ---


def test_a_snapshot_beyond_what_a_job_can_name_is_a_problem_of_its_log_alone(root: Path) -> None:
    write_snapshot(root / "bad", index=2**64 - 1, term=9, live=LiveSet.empty())
    reading = reading_of(root)
    assert [Path(candidate.target).name for candidate in reading.candidates] == ["good"]
    assert [(Path(problem.target).name, problem.reason) for problem in reading.problems] == [("bad", "LogInvalid")]


@pytest.mark.parametrize("seconds", [2**40, -(2**33)])
def test_a_time_outside_of_the_calendar_is_cut_to_it(root: Path, seconds: int) -> None:
    (snapshot,) = (root / "bad" / SNAPSHOTS).iterdir()
    os.utime(snapshot, (seconds, seconds))
    found = {log.path.name: log.oldest_debt_at for log in look(root).logs}
    assert found["bad"] is not None
    assert 0 <= found["bad"] <= 253_402_300_799


def reading_of(root: Path) -> ScanResult:
    spec = {"store": {"segmentLogs": {"root": str(root)}}}
    return open_store(CompactionPolicySpec.model_validate(spec), holder="t").sense(SenseRequest(1, 1, 0.0)).reading


def test_a_snapshot_of_terabytes_of_nothing_is_refused_without_reading_it(root: Path) -> None:
    (directory,) = (root / "bad" / SNAPSHOTS).iterdir()
    os.truncate(directory / "snapshot.dat", 1 << 42)
    (error,) = find_snapshots(root / "bad").rejected
    assert f"{directory}/snapshot.dat: invalid snapshot: it claims 4398046511104 bytes" in str(error)
    assert {log.path.name: log.plan.groups != () for log in look(root).logs} == {"bad": False, "good": True}


def test_a_segment_of_terabytes_of_nothing_costs_no_more_than_its_index(root: Path) -> None:
    os.truncate(root / "bad" / segment_name(1), 1 << 42)
    before = content(root / "bad")
    assert {log.path.name for log in look(root).logs} == {"bad", "good"}
    compact_all(SegmentLogStore(root), root / "bad")
    assert content(root / "bad") == before


def test_very_many_files_beside_the_segments_are_not_kept(tmp_path: Path) -> None:
    """100,000 names in one directory (`make fuzz` takes a million): what a look holds meanwhile is bounded."""
    assert memory_of_a_look(tmp_path / "root", files=100_000) < ALLOWED_KIB


# --- permissions ---


@pytest.mark.parametrize(
    "locked", ["", segment_name(2), SNAPSHOTS, "snapshots/*", "snapshots/*/indexes", "compaction.fence"]
)
def test_what_may_not_be_read_is_named_and_its_sibling_planned(root: Path, locked: str) -> None:
    if locked == "compaction.fence":
        SegmentLogStore(root).claim("bad", job="j", token=1)
    (victim,) = (root / "bad").glob(locked) if locked else (root / "bad",)
    with as_nobody(root, forbidden=victim):
        result = look(root)
    assert told(result) != []
    assert all(error.path == root / "bad" for error in result.errors)
    assert str(victim) in result.errors[0].message


@pytest.mark.parametrize("step", ["claim", "recover", "sweep", "retire"])
def test_a_log_that_may_not_be_written_is_named_and_stays_as_it_is(root: Path, step: str) -> None:
    store = SegmentLogStore(root)
    store.claim("bad", job="old", token=1)
    steps: dict[str, Callable[[], object]] = {
        "claim": lambda: store.claim("bad", job="j", token=1),
        "recover": lambda: store.recover("bad"),
        "sweep": lambda: store.sweep("bad", grace_seconds=0, active=None),
        "retire": lambda: store.retire("bad", "old"),
    }
    before = state_of(root / "bad")
    with as_nobody(root, read_only=True), pytest.raises(CompactionError) as refusal:
        steps[step]()
    assert str(root / "bad") in str(refusal.value)
    assert state_of(root / "bad") == before


@pytest.mark.parametrize("after", range(6))
def test_permission_taken_away_in_the_middle_of_a_job_loses_nothing(root: Path, after: int) -> None:
    """The directory becomes read-only after so many system calls that change it; later the job is done again."""
    log, store = root / "bad", SegmentLogStore(root)
    before = content(log)
    with (
        as_nobody(root),
        before_call("write", after, lambda: log.chmod(0o555)),
        contextlib.suppress(CompactionError),
    ):
        compact_all(store, log)
    assert content(log) == before
    store.recover(log)
    compact_all(store, log, token=7)
    assert content(log) == before
    assert not [name for name in os.listdir(log) if name.endswith((".compacting", ".link", ".tmp"))]


# --- files that others have too ---


def test_two_logs_that_share_their_files_are_compacted_apart(root: Path) -> None:
    """A copy made with `cp -al`: what one log's compaction writes is never seen in the other."""
    copy = root / "copy"
    subprocess.run(["cp", "-al", str(root / "bad"), str(copy)], check=True)
    assert os.path.samefile(root / "bad" / segment_name(1), copy / segment_name(1))
    before, store = content(copy), SegmentLogStore(root)
    compact_all(store, root / "bad", sweep=True)
    assert content(copy) == before
    compact_all(store, copy, sweep=True)
    assert content(copy) == before
    assert content(root / "bad") == before


def state_of(directory: Path) -> list[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes()) for path in directory.iterdir() if path.is_file())


# --- directories that change while they are read ---

Change = Callable[[Path], object]


def _replace_by_file(log: Path) -> None:
    shutil.rmtree(log)
    log.write_text("no directory")


def _replace_by_link(log: Path) -> None:
    log.rename(log.parent.parent / "elsewhere")
    log.symlink_to(log.parent.parent / "elsewhere")


def _link_snapshots(log: Path) -> None:
    (log / SNAPSHOTS).rename(log / "other")
    (log / SNAPSHOTS).symlink_to("other")


def _link_segment(log: Path) -> None:
    (log / segment_name(2)).unlink()
    (log / segment_name(2)).symlink_to(segment_name(1))


CHANGES: dict[str, Change] = {
    "log moved": lambda log: log.rename(log.parent.parent / "moved"),
    "log deleted": shutil.rmtree,
    "log became a file": _replace_by_file,
    "log became a link out": _replace_by_link,
    "segment deleted": lambda log: (log / segment_name(2)).unlink(),
    "newest segment deleted": lambda log: (log / segment_name(4)).unlink(),
    "segment became a link": _link_segment,
    "segment emptied": lambda log: os.truncate(log / segment_name(2), 0),
    "segment cut": lambda log: os.truncate(log / segment_name(2), 100),
    "segment appeared": lambda log: (log / segment_name(5)).touch(),
    "snapshots deleted": lambda log: shutil.rmtree(log / SNAPSHOTS),
    "snapshots became a link": _link_snapshots,
    "fence became garbage": lambda log: (log / "compaction.fence").write_bytes(b"\xff"),
    "became unreadable": lambda log: log.chmod(0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_changes_at_any_moment_of_a_look(tmp_path: Path, change: str) -> None:
    """The change is made before each single system call of a look, one look after the other: the look always ends in a
    result, the sibling is in it, and what is wrong is named with a path below the root.
    """
    for name in ("bad", "good"):
        make(tmp_path / "all" / "root" / name)
    with before_call("read", -1, lambda: None) as counted:
        look(tmp_path / "all" / "root")
    assert len(counted.names) > 50
    for at in each_call(counted.names):
        root = tmp_path / str(at) / "root"
        for name in ("bad", "good"):
            make(root / name)
        with as_nobody(root.parent), before_call("read", at, lambda: CHANGES[change](root / "bad")):  # noqa: B023
            result = look(root)
        assert all(error.path.is_relative_to(root) for error in result.errors)
        assert all(str(error.path) in error.message for error in result.errors)
        again = look(root)
        assert {log.path.name for log in again.logs} | {error.path.name for error in again.errors} >= {"good"}


def test_a_job_whose_log_is_moved_away_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """Moved before each single call that changes the log: an error, or the job was done; the content is whole."""
    whole = make(tmp_path / "all" / "bad")
    with before_call("write", -1, lambda: None) as counted:
        compact_all(SegmentLogStore(whole.parent), whole)
    assert len(counted.names) > 10
    for at in each_call(counted.names):
        root = tmp_path / str(at) / "root"
        log = make(root / "bad")
        before, moved = content(log), tmp_path / str(at) / "moved"
        with before_call("write", at, lambda: log.rename(moved)), contextlib.suppress(CompactionError):  # noqa: B023
            compact_all(SegmentLogStore(root), log)
        place = moved if moved.exists() else log
        assert content(place) == before
        SegmentLogStore(place.parent).recover(place)
        compact_all(SegmentLogStore(place.parent), place, token=9)
        assert content(place) == before


HARMLESS = (
    "log moved",
    "log became a link out",
    "segment appeared",
    "snapshots became a link",
    "fence became garbage",
    "became unreadable",
)
"""Changes that take no entry away: afterwards all of them must still be there."""


@pytest.mark.parametrize("change", HARMLESS)
def test_a_job_whose_log_changes_between_two_looks_loses_nothing(tmp_path: Path, change: str) -> None:
    """The change is made before every eighth system call that looks (every 24th in a short run); the job ends in an
    error that names the log, or is done; every live entry is where it was.
    """
    whole = make(tmp_path / "all" / "bad")
    with before_call("read", -1, lambda: None) as counted:
        compact_all(SegmentLogStore(whole.parent), whole, sweep=True)
    assert len(counted.names) > 100
    for at in range(0, len(counted.names), at_depth(short=24, deep=8)):
        root = tmp_path / str(at) / "root"
        log = make(root / "bad")
        before, refusal = content(log), ""
        with as_nobody(root.parent), before_call("read", at, lambda: CHANGES[change](log)):  # noqa: B023
            try:
                compact_all(SegmentLogStore(root), log, sweep=True)
            except CompactionError as error:
                refusal = str(error)
        assert not refusal or str(log) in refusal
        place = next(path for path in (root.parent / "moved", root.parent / "elsewhere", log) if path.exists())
        if (place / "other").is_dir():
            (place / SNAPSHOTS).unlink()
            (place / "other").rename(place / SNAPSHOTS)
        assert content(place) == before
