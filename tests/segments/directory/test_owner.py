"""The logs of a Ra server that is not known to be stopped stay as they are, whoever wants to compact them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compaction.api.policy.segment_logs import Ownership
from compaction.segments import sweep
from compaction.segments.clump.clump_run import require_stopped_owner
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory.owner import (
    MARKER_FILE,
    NAMES_FILE,
    TEMPORARY_FILE,
    Mark,
    Marker,
    OwnerSigns,
    Writers,
    doubt_of,
    look_for_owner,
    require_stopped,
    system_of,
)
from compaction.segments.errors import ClumpRefusedError, OwnerRunningError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.generate import generate_log
from compaction.segments.memtable import LogEntry
from compaction.segments.model import segment_name
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import MissingEntries, open_log
from compaction.segments.rewriting import kernel
from compaction.segments.scan.find import LogErrorReason
from compaction.segments.scan.sense import SenseSettings, sense_root
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.segments.system.system import LogSystem
from support.clocks import PATIENCE_SECONDS
from support.segments.ra_owner import META, WAL, dets_header, killed, running, stopped
from support.segments.segment_logs import content, leftovers, regular, write_wal

DATA = Path("/data")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "data" / "LOG"
    generate_log(directory, pattern="overwritten", segments=9, entries_per_segment=32, payload_bytes=64, sync=False)
    return directory


@pytest.mark.parametrize(
    ("signs", "said"),
    [
        (OwnerSigns(DATA), ""),
        (OwnerSigns(DATA, Mark.CLOSED, Writers.NONE, (WAL,)), ""),
        (OwnerSigns(DATA, Mark.CLOSED, Writers.NONE), ""),
        (OwnerSigns(DATA, Mark.CLOSED, Writers.SOME), "has /data/meta.dets open for writing"),
        (OwnerSigns(DATA, Mark.OPEN, Writers.SOME), "has /data/meta.dets open for writing"),
        (OwnerSigns(DATA, Mark.OPEN, Writers.NONE), "runs on another machine, or was killed"),
        (OwnerSigns(DATA, Mark.OPEN, Writers.UNKNOWN), "runs, or was killed"),
        (OwnerSigns(DATA, Mark.CLOSED, Writers.UNKNOWN, detail="no leases"), "cannot be found out here (no leases)"),
        (OwnerSigns(DATA, Mark.FOREIGN, detail="it has 3 bytes"), "not a file of Ra (it has 3 bytes)"),
        (OwnerSigns(DATA, Mark.UNREADABLE, detail="Permission denied"), "cannot be read (Permission denied)"),
        (OwnerSigns(DATA, wals=(WAL,)), f"/data/{WAL} lies there without meta.dets"),
    ],
)
def test_only_a_closed_table_that_no_process_has_open_is_a_stopped_owner(signs: OwnerSigns, said: str) -> None:
    assert (said in signs.doubt()) if said else (signs.doubt() == "")
    assert signs.is_ra_system is (signs != OwnerSigns(DATA))


def test_what_the_files_say(log: Path) -> None:
    data = log.parent
    assert look_for_owner(log).is_ra_system is False
    stopped(data)
    found = look_for_owner(log)
    assert (found.system, found.mark, found.writers, found.wals) == (data, Mark.CLOSED, Writers.NONE, (WAL,))
    killed(data)
    assert (look_for_owner(log).mark, look_for_owner(log).writers) == (Mark.OPEN, Writers.NONE)


def test_an_idle_server_that_looks_closed_is_seen_by_its_open_file(log: Path) -> None:
    """Ra's table is saved, and marked as closed, five seconds after the last write."""
    with running(log.parent, idle=True):
        found = look_for_owner(log)
        assert (found.mark, found.writers) == (Mark.CLOSED, Writers.SOME)
        assert f"process {os.getpid()} (" in doubt_of(found)
    assert doubt_of(look_for_owner(log)) == ""


def test_a_server_in_another_process_is_named(log: Path) -> None:
    meta = stopped(log.parent)
    script = "import sys; f = open(sys.argv[1], 'r+b'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(meta)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "open\n"
        assert f"process {server.pid} (" in doubt_of(look_for_owner(log))
        server.communicate()
    assert doubt_of(look_for_owner(log)) == ""


def test_looking_keeps_nobody_from_starting(log: Path) -> None:
    meta = stopped(log.parent)
    for _ in range(50):
        assert look_for_owner(log).writers is Writers.NONE
        os.close(os.open(meta, os.O_RDWR | os.O_NONBLOCK))  # EWOULDBLOCK while anybody has a lease


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (b"", "it has 0 bytes"),
        (dets_header(1)[:11], "it has 11 bytes"),
        (b"x" * 400, "does not begin as a DETS file does"),
        (dets_header(2), "bytes 8 to 11 are 2"),
    ],
)
def test_another_file_under_the_name_says_nothing(log: Path, meta: bytes, said: str) -> None:
    (log.parent / META).write_bytes(meta)
    with pytest.raises(OwnerRunningError, match=said):
        require_stopped(log, Ownership.DETECT)
    require_stopped(log, Ownership.STOPPED)


def test_what_is_no_file_is_never_waited_for(log: Path) -> None:
    meta = log.parent / META
    os.mkfifo(meta)
    assert look_for_owner(log).mark is Mark.FOREIGN
    meta.unlink()
    meta.mkdir()
    assert look_for_owner(log).mark is Mark.FOREIGN
    meta.rmdir()
    meta.symlink_to(stopped(log.parent.parent / "elsewhere"))
    assert look_for_owner(log).mark is Mark.UNREADABLE
    assert "not say whether the log's owner runs" in look_for_owner(log).doubt()


def test_the_system_is_found_behind_links(log: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(log)
    assert system_of(tmp_path / "alias") == system_of(log) == log.parent


def rewritten(log: Path, *, token: int = 1) -> tuple[list[RewrittenGroup], list[str]]:
    """The plan's groups, rewritten and not committed; and the names of its dead segments."""
    state = open_log(log)
    assert state.live is not None
    plan = plan_log(state, SegmentLimits())
    fence.claim(log, job="job", token=token, holder="test")
    limits = SegmentLimits()
    groups = [
        kernel.rewrite_group(log, sources=group.sources, live=state.live, limits=limits, job="job", token=token)
        for group in plan.groups
    ]
    return groups, [item.name for item in plan.unreferenced]


@pytest.mark.parametrize("idle", [False, True])
def test_an_owner_that_started_since_the_plan_is_noticed_before_the_commit(log: Path, idle: bool) -> None:
    stopped(log.parent)
    before, files = content(log), regular(log)
    groups, dead = rewritten(log)
    assert groups
    with running(log.parent, idle=idle):
        with pytest.raises(OwnerRunningError, match="open for writing"):
            commit.commit_groups(log, job="job", token=1, groups=groups, holder="test")
        with pytest.raises(OwnerRunningError):
            commit.commit_unreferenced(log, job="job", token=1, names=dead, holder="test")
        with pytest.raises(OwnerRunningError):
            sweep.sweep(log, grace_seconds=0)
    assert leftovers(log) == []
    assert (content(log), regular(log)) == (before, files)
    assert fence.read(log).receipts == ()


def test_a_killed_owner_has_to_be_vouched_for(log: Path) -> None:
    stopped(log.parent)
    before = content(log)
    groups, dead = rewritten(log)
    killed(log.parent)
    said = Ownership.STOPPED
    commit.commit_groups(log, job="job", token=1, groups=groups, holder="test", ownership=said)
    commit.commit_unreferenced(log, job="job", token=1, names=dead, holder="test", ownership=said)
    with pytest.raises(OwnerRunningError, match="or was killed"):
        sweep.sweep(log, grace_seconds=0)
    assert sweep.sweep(log, grace_seconds=0, ownership=said).deleted
    assert content(log) == before


def test_recovery_changes_nothing_under_a_running_owner(log: Path) -> None:
    killed(log.parent)
    assert recovery.recover(log).changed is False, "there is nothing to settle, so nobody is asked"
    (log / "0000000000000001.link").symlink_to(segment_name(2))
    with pytest.raises(OwnerRunningError):
        recovery.recover(log)
    assert (log / "0000000000000001.link").is_symlink()
    assert recovery.recover(log, ownership=Ownership.STOPPED).removed == ("0000000000000001.link",)


def test_a_claim_and_a_job_are_refused_before_any_work(log: Path) -> None:
    store = SegmentLogStore(log.parent)
    killed(log.parent)
    with pytest.raises(OwnerRunningError):
        store.claim("LOG", job="job", token=1)
    with pytest.raises(OwnerRunningError):
        store.prepare("LOG", job="job", groups=[], snapshot_index=0)
    assert not (log / fence.FENCE_FILE).exists()
    store.claim("LOG", job="job", token=1, ownership=Ownership.STOPPED)
    vouched = SegmentLogStore(log.parent, SenseSettings(ownership=Ownership.STOPPED))
    assert vouched.prepare("LOG", job="job", groups=[], snapshot_index=0).groups == ()


def test_entries_are_not_appended_under_a_running_owner_whatever_is_said(log: Path) -> None:
    with running(log.parent, idle=True), pytest.raises(ClumpRefusedError, match="open for writing"):
        require_stopped_owner(open_log(log), owner_stopped=True)


def test_a_look_names_each_log_of_a_running_owner_and_plans_the_others(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "LOG"
    generate_log(other, segments=5, entries_per_segment=32, payload_bytes=64, sync=False)
    stopped(other.parent)
    with running(log.parent):
        found = sense_root(tmp_path, SenseSettings())
        assert [item.path for item in found.logs] == [log, other], "what it would gain is known all the same"
        assert found.running == {log}
        (error,) = found.errors
        assert (error.path, error.reason) == (log, LogErrorReason.OWNER_RUNNING)
        assert "--owner-stopped, in a policy ownership: Stopped" in error.message
        vouched = sense_root(tmp_path, SenseSettings(ownership=Ownership.STOPPED))
        assert (vouched.running, vouched.errors) == (frozenset(), ())
    killed(log.parent)
    assert sense_root(log, SenseSettings()).running == {log}, "the root may be the log itself"


@pytest.fixture
def holey(tmp_path: Path) -> Path:
    """Entries 1 to 40; 12, 13 and 30 are not there. What is live says that they should be."""
    directory = tmp_path / "holey" / "LOG"
    with LogWriter(directory, max_count=8) as writer:
        for index in [i for i in range(1, 41) if i not in (12, 13, 30)]:
            writer.append(index, 1, b"entry %d" % index)
    write_snapshot(directory, index=32, term=1, live=LiveSet.parse("9,12-14,30"))
    return directory


def test_live_entries_in_no_segment_are_counted(holey: Path, log: Path) -> None:
    found = MissingEntries.of(open_log(holey).missing)
    assert (found.entries, found.first) == (3, 12)
    assert str(found) == "3 live entries (first index 12) are in no segment that can be read"
    assert MissingEntries.of(open_log(holey, snapshot_index=32, live=LiveSet.parse("9,14,30")).missing).entries == 1
    assert not MissingEntries.of(open_log(holey, snapshot_index=32, live=LiveSet.empty()).missing)
    assert not MissingEntries.of(open_log(log).missing)


def test_missing_entries_are_an_error_where_no_write_ahead_log_holds_them(holey: Path) -> None:
    found = sense_root(holey.parent, SenseSettings())
    (error,) = found.errors
    assert error.reason is LogErrorReason.LIVE_ENTRIES_MISSING
    assert "3 live entries (first index 12)" in error.message
    assert found.running == frozenset()
    stopped(holey.parent, wal=False)
    (error,) = sense_root(holey.parent, SenseSettings()).errors
    assert f"no write-ahead log lies beside {holey.parent / META}: it is lost, or elsewhere" in error.message
    lost = [(b"another", 12, b"x"), (holey.name.encode(), 13, b"x")]
    write_wal(holey.parent, 1, [(uid, LogEntry(index, 1, payload)) for uid, index, payload in lost])
    (error,) = sense_root(holey.parent, SenseSettings()).errors
    assert "2 live entries (first index 12)" in error.message
    assert f"nor in the write-ahead log (1 file in {holey.parent})" in error.message
    write_wal(holey.parent, 2, [(holey.name.encode(), LogEntry(index, 1, b"x")) for index in (12, 30)])
    found = sense_root(holey.parent, SenseSettings())
    assert found.errors == ()
    assert [item.missing.entries for item in found.logs] == [0]


# The logs of an owner that follows compactions are compacted while it runs; of any other evidence, none counts.


def written(system: LogSystem) -> Path:
    """A log with a segment, and live entries that are in the write-ahead log alone."""
    log = system.open_log("a")
    log.append([LogEntry(index, 1, b"entry %d" % index) for index in range(1, 9)]).result(PATIENCE_SECONDS)
    system.roll().result(PATIENCE_SECONDS)
    assert system.drain(PATIENCE_SECONDS)
    log.append([LogEntry(index, 1, b"entry %d" % index) for index in range(9, 13)]).result(PATIENCE_SECONDS)
    log.snapshot(10, 1, b"\x83j", LiveSet.parse("2,9-10")).result(PATIENCE_SECONDS)
    return log.directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a system that was closed."""
    with LogSystem(tmp_path / "data") as system:
        written(system)
    return tmp_path / "data"


def test_a_running_owner_that_follows_is_no_reason_to_wait(tmp_path: Path) -> None:
    with LogSystem(tmp_path / "data") as system:
        log = written(system)
        signs = look_for_owner(log)
        assert (signs.marker, signs.is_ra_system, signs.doubt(), len(signs.wals)) == (Marker.FOLLOWS, False, "", 1)
        require_stopped(log, Ownership.DETECT)
        found = sense_root(tmp_path, SenseSettings())
        assert ([log.path for log in found.logs], found.errors, found.running) == ([log], (), frozenset())
        # Entries 9 and 10 are live, and wait in the write-ahead log: nothing is missing.
        assert found.logs[0].missing.entries == 0
        with pytest.raises(ClumpRefusedError, match=r"its owner runs: .*system of logs, pid"):
            require_stopped_owner(open_log(log), owner_stopped=True)
    require_stopped(log, Ownership.DETECT)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is not JSON"),
        (b"[" * 4000, "it is not JSON"),
        (b"[1]", "it is not of rules 1"),
        (b'{"owner": "LogSystem"}', "it is not of rules 1"),
        (b'{"rules": 2}', "it is not of rules 1"),
        (b'{"rules": true}', "it is not of rules 1"),
    ],
)
def test_a_marker_that_says_something_else_is_no_evidence(data: Path, content: bytes, said: str) -> None:
    (data / MARKER_FILE).write_bytes(content)
    with pytest.raises(OwnerRunningError, match=f"{MARKER_FILE} does not say that its owner follows .*{said}"):
        require_stopped(data / "a", Ownership.DETECT)
    with LogSystem(data):
        require_stopped(data / "a", Ownership.DETECT)


def test_what_is_no_file_is_no_evidence_and_never_waited_for(data: Path) -> None:
    marker, elsewhere = data / MARKER_FILE, data.parent / "elsewhere"
    marker.rename(elsewhere)
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to(elsewhere)):
        make(marker)
        with pytest.raises(OwnerRunningError, match="does not say that its owner follows"):
            require_stopped(data / "a", Ownership.DETECT)
        marker.rmdir() if marker.is_dir() and not marker.is_symlink() else marker.unlink()
    with pytest.raises(OwnerRunningError, match=r"lies there without meta.dets"):
        require_stopped(data / "a", Ownership.DETECT)


def test_a_ra_server_in_the_same_directory_stays_as_protected_as_without_the_marker(data: Path) -> None:
    with running(data, idle=True), pytest.raises(OwnerRunningError, match="open for writing"):
        require_stopped(data / "a", Ownership.DETECT)
    killed(data)
    with pytest.raises(OwnerRunningError, match="or was killed"):
        require_stopped(data / "a", Ownership.DETECT)
    stopped(data)
    require_stopped(data / "a", Ownership.DETECT)
    (data / META).unlink()
    (data / NAMES_FILE).touch()
    with pytest.raises(OwnerRunningError, match=f"{WAL} lies there without meta.dets"):
        require_stopped(data / "a", Ownership.DETECT)


def test_the_marker_is_written_before_the_first_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two leaves no write-ahead log without it; a leftover of its writing is replaced."""
    data = tmp_path / "data"
    data.mkdir()
    (data / TEMPORARY_FILE).touch()
    rename, at_rename = os.rename, list[list[str]]()

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        at_rename.append(sorted(os.listdir(data)))

    monkeypatch.setattr(os, "rename", renamed)
    with LogSystem(data):
        pass
    assert at_rename[0] == ["compaction.lock", MARKER_FILE]
