"""Re-writing live entries at the head of a stopped log, as a whole; and everything that must refuse it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.errors import StaleTokenError
from compaction.segments import sweep
from compaction.segments.clump import clump_commit as clump_commit
from compaction.segments.clump.clump_commit import CopiedClump, commit_clumps, copy_clumps
from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.clump.clump_run import (
    ClumpResult,
    clump_log,
    prepare_clump,
    receipts_of,
    require_stopped_owner,
)
from compaction.segments.clump.moves import read_moves, write_moves
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.directory import lock
from compaction.segments.errors import (
    ClumpRefusedError,
    CorruptEntryError,
    LiveSetUnknownError,
    LockLostError,
    SourcesChangedError,
)
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.generate import Pattern, corrupt_entry, generate_log
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import SnapshotOrigin, encode_snapshot, write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.segments.log_owners import live_payloads, under_the_maps
from support.segments.segment_logs import leftovers

JOB = "by-hand"
LIMITS = SegmentLimits(max_entries=40)
REQUEST = ClumpOptions()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six segments of 64 entries, every fourth of the first 320 live."""
    directory = tmp_path_factory.mktemp("template") / "log"
    generate_log(directory, segments=6, entries_per_segment=64, payload_bytes=100, sync=False)
    return directory


@pytest.fixture
def log(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "log"))


def _clump(directory: Path, *, token: int = 1, stopped: bool = True, request: ClumpOptions = REQUEST) -> ClumpResult:
    fence.claim(directory, job=JOB, token=token, holder="test")
    return clump_log(
        directory, request=request, limits=LIMITS, owner_stopped=stopped, job=JOB, token=token, holder="test", now=9.0
    )


def _copied(directory: Path) -> tuple[CopiedClump, ...]:
    fence.claim(directory, job=JOB, token=1, holder="test")
    prepared = prepare_clump(directory, request=REQUEST, limits=LIMITS, owner_stopped=True, job=JOB, token=1)
    return copy_clumps(prepared.task)


def _commit(directory: Path, clump: CopiedClump, *, token: int = 1) -> None:
    commit_clumps(directory, job=JOB, token=token, clumps=[clump], holder="test", now=9.0)


def _state(directory: Path) -> dict[str, bytes]:
    """Every file but the fence and the lock."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("compaction.")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_content_is_equal_under_the_map_and_the_old_entries_are_dead(log: Path) -> None:
    before, files = live_payloads(log), _state(log)
    result = _clump(log)
    assert under_the_maps(log, before) == before
    assert [(r.first, r.last, r.output[:16], r.entries) for r in result.receipts] == [
        (385, 424, "0000000000000007", 40),
        (425, 464, "0000000000000008", 40),
    ]
    assert (result.receipts[0].ranges_before, result.receipts[-1].ranges_after) == (80, 1)
    state = open_log(log)
    assert state.live == LiveSet.empty()
    assert state.snapshot_index == 320
    for receipt in result.receipts:
        segment = state.segment(receipt.output)
        assert segment.is_full
        assert (segment.term == receipt.term).all()
        assert receipt.fingerprint
    changed = [name for name, content in files.items() if _state(log)[name] != content]
    assert [Path(name).name for name in changed] == ["indexes"]
    assert leftovers(log) == []
    assert receipts_of(log, JOB) == result.receipts
    assert (log / "0000000000000007.segment").stat().st_mode == (log / "0000000000000006.segment").stat().st_mode


def test_the_ordinary_phases_reclaim_what_died(log: Path) -> None:
    before = live_payloads(log)
    _clump(log, request=ClumpOptions(max_bytes=6000))
    fence.claim(log, job="next", token=1, holder="test")
    state = open_log(log)
    assert state.live is not None
    plan = plan_log(state, SegmentLimits())
    assert [u.name[:16] for u in plan.unreferenced] == ["0000000000000001", "0000000000000002", "0000000000000003"]
    (group,) = plan.groups
    done = kernel.rewrite_group(
        log, sources=group.sources, live=state.live, limits=SegmentLimits(), job="next", token=1
    )
    commit.commit_group(log, job="next", token=1, group=done, holder="test", now=10.0)
    names = [u.name for u in plan.unreferenced]
    commit.commit_unreferenced(log, job="next", token=1, names=names, holder="test", now=10.0)
    report = sweep.sweep(log, now=1e9, grace_seconds=0)
    assert len(report.deleted) == 4
    assert under_the_maps(log, before) == before


def test_the_owner_goes_on_behind_the_copies(log: Path) -> None:
    _clump(log)
    with LogWriter(log, max_count=64, sync=False) as writer:
        writer.append(465, 2, b"the next command")
    state = open_log(log)
    assert state.newest == "0000000000000009.segment"
    assert live_payloads(log)[465] == b"the next command"


def test_a_map_is_swept_once_a_newer_snapshot_is_older_than_the_grace(log: Path) -> None:
    _clump(log)
    assert len(read_moves(log)) == 2
    sweep.sweep(log, now=1e12, grace_seconds=0)
    assert len(read_moves(log)) == 2, "the snapshot in force still speaks of the old indexes"
    taken = write_snapshot(log, index=430, term=1, live=LiveSet.parse("385-430"), sync=False)
    at = (taken.path / "snapshot.dat").stat().st_mtime
    sweep.sweep(log, now=at + 50, grace_seconds=60)
    assert len(read_moves(log)) == 2
    sweep.sweep(log, now=at + 61, grace_seconds=60)
    (left,) = read_moves(log)
    assert left.receipt.last == 464, "its last entries lie above that snapshot"


def test_what_was_moved_can_be_moved_again(log: Path) -> None:
    """After the owner's next snapshot, when most of the copies have died."""
    _clump(log)
    with LogWriter(log, max_count=64, sync=False) as writer:
        writer.append_many(range(465, 600), 2, [b"more"] * 135)
    keep = LiveSet.from_indexes(range(385, 465, 2))
    write_snapshot(log, index=590, term=2, live=keep, sync=False)
    before = live_payloads(log)
    result = _clump(log, token=2)
    assert [(r.first, r.entries, r.term) for r in result.receipts] == [(600, 40, 2)]
    assert under_the_maps(log, before) == before


def test_a_repeated_commit_returns_the_first_receipt(log: Path) -> None:
    first, second = _copied(log)
    partial = (log / first.partial).read_bytes()
    _commit(log, first)
    state = _state(log)
    (log / first.partial).write_bytes(partial)
    _commit(log, first)
    assert _state(log) == state
    _commit(log, second)
    assert [r.first for r in receipts_of(log, JOB)] == [385, 425]


def test_bytes_of_an_earlier_attempt_count(log: Path) -> None:
    first, _ = _copied(log)
    _commit(log, first)
    result = _clump(log, token=2, request=ClumpOptions(max_bytes=first.payload_bytes + 2000))
    assert [r.payload_bytes for r in result.receipts] == [2000]
    assert _clump(log, token=3, request=ClumpOptions(max_bytes=first.payload_bytes + 2000)).receipts == ()


@pytest.mark.parametrize("change", ["segment", "snapshot", "live", "append", "partial", "order", "lower"])
def test_a_log_that_changed_since_is_left_alone(log: Path, change: str) -> None:
    first, second = _copied(log)
    clump = first
    match change:
        case "segment":
            with LogWriter(log, max_count=64, sync=False) as writer:
                writer.append(385, 1, b"of the owner")
        case "append":
            os_append(log / "0000000000000006.segment")
        case "snapshot":
            write_snapshot(log, index=330, term=1, live=LiveSet.parse("1,5"), sync=False)
        case "live":
            write_snapshot(log, index=320, term=1, live=LiveSet.parse("1-2,9"), sync=False)
        case "partial":
            os_append(log / first.partial)
        case "order":
            clump = second
        case "lower":
            (log / "0000000000000009.segment").symlink_to("0000000000000006.segment")
    before = _state(log)
    with pytest.raises(SourcesChangedError):
        _commit(log, clump)
    after = _state(log)
    assert before.keys() - after.keys() == {clump.partial}
    assert after.items() <= before.items()


def os_append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def test_a_zombie_commits_nothing(log: Path) -> None:
    first, second = _copied(log)
    _commit(log, first)
    fence.claim(log, job=JOB, token=2, holder="successor")
    before = _state(log)
    with pytest.raises(StaleTokenError):
        _commit(log, second)
    with pytest.raises(StaleTokenError):
        _commit(log, second, token=3)
    assert before.keys() - _state(log).keys() == {second.partial}
    fence.retire(log, JOB)
    with pytest.raises(StaleTokenError):
        _commit(log, second, token=2)


def test_a_claim_just_before_the_commit_point_is_seen(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that was lost and taken by a successor: the fence tells."""
    first, second = _copied(log)
    before = live_payloads(log)

    def overtaken(directory: Path, *args: object, **kwargs: object) -> None:
        write_moves(directory, *args, **kwargs)  # type: ignore[arg-type]
        record = fence.with_claim(fence.read(directory), job=JOB, token=2, holder="successor", now=1.0)
        fence.write(directory, record)

    monkeypatch.setattr(clump_commit, "write_moves", overtaken)
    with pytest.raises(StaleTokenError):
        _commit(log, first)
    assert leftovers(log) == [second.partial]
    assert read_moves(log) == ()
    assert live_payloads(log) == before


def test_a_lost_lock_stops_before_the_commit_point(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _copied(log)

    def loses(directory: Path, *args: object, **kwargs: object) -> None:
        write_moves(directory, *args, **kwargs)  # type: ignore[arg-type]
        (directory / lock.LOCK_FILE).unlink()

    monkeypatch.setattr(clump_commit, "write_moves", loses)
    before = live_payloads(log)
    with pytest.raises(LockLostError):
        _commit(log, first)
    assert live_payloads(log) == before
    recovery.recover(log)
    assert leftovers(log) == [second.partial]
    assert read_moves(log) == ()


def test_a_damaged_entry_is_named_and_nothing_changes(log: Path) -> None:
    damaged = corrupt_entry(log, segment=4, record=4)
    before = _state(log)
    with pytest.raises(CorruptEntryError, match=rf"{damaged.file}: corrupt entry at index {damaged.index}, offset"):
        _clump(log)
    assert _state(log) == before


def test_a_damaged_entry_that_is_dead_does_not_matter(log: Path) -> None:
    corrupt_entry(log, segment=4, record=5)
    assert sum(r.entries for r in _clump(log).receipts) == 80


def test_only_a_stopped_owner(log: Path) -> None:
    before = _state(log)
    with pytest.raises(ClumpRefusedError, match="--owner-stopped"):
        _clump(log, stopped=False)
    assert _state(log) == before


def test_an_unknown_live_set_is_refused(log: Path) -> None:
    (snapshot,) = (log / "snapshots").iterdir()
    (snapshot / "indexes").unlink()
    before = _state(log)
    with pytest.raises(LiveSetUnknownError):
        _clump(log)
    assert _state(log) == before


def test_entries_that_wait_in_a_wal_are_not_overtaken(log: Path) -> None:
    """Also when the name lies across the chunks in which the file is read."""
    wal = log.parent / "0000000000000001.wal"
    wal.write_bytes(b"RAWA\x01" + b"other" * 10)
    require_stopped_owner(open_log(log), owner_stopped=True)
    wal.write_bytes(b"RAWA\x01" + b"." * ((1 << 20) - 7) + log.name.encode())
    with pytest.raises(ClumpRefusedError, match=wal.name):
        _clump(log)


@pytest.mark.parametrize("members", [0, 3])
def test_a_log_of_several_members_is_refused(log: Path, members: int) -> None:
    (snapshot,) = (log / "snapshots").iterdir()
    cluster = tuple((f"log{number}", "node@host") for number in range(members))
    (snapshot / "snapshot.dat").write_bytes(
        encode_snapshot(index=320, term=1, state=b"\x83j", origin=SnapshotOrigin.of_members(cluster, 0))
    )
    with pytest.raises(ClumpRefusedError, match=f"{members} members"):
        _clump(log)


def test_a_newest_segment_that_was_only_just_created_is_refused(log: Path) -> None:
    (log / "0000000000000007.segment").touch()
    with pytest.raises(ClumpRefusedError, match="which is empty"):
        _clump(log)


def test_nothing_sparse_is_nothing_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    generate_log(log, pattern=Pattern.RUNS, segments=4, entries_per_segment=256, payload_bytes=50, sync=False)
    before = _state(log)
    assert _clump(log).receipts == ()
    assert _state(log) == before


@pytest.mark.fixtures
def test_a_log_and_snapshot_made_by_ra(ra_fixtures: Path, tmp_path: Path) -> None:
    """15 segments, of which every third entry is live; one member, as its snapshot says."""
    log = tmp_path / "log"
    shutil.copytree(ra_fixtures / "03a-major-module" / "before", log, copy_function=shutil.copyfile)
    for path in (log, *log.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before, ranges = live_payloads(log), open_log(log).live
    assert ranges is not None
    result = _clump(log)
    assert under_the_maps(log, before) == before
    assert result.receipts[0].first == max(before) + 1
    assert result.receipts[-1].ranges_after < len(ranges.ranges) / 10


def test_entries_of_all_kinds_are_copied_as_they_are(tmp_path: Path) -> None:
    """Overwritten ones, ones without a checksum, and payloads larger than a read."""
    log = tmp_path / "log"
    with LogWriter(log, max_count=7, checksums=False, sync=False) as writer:
        writer.append_many(range(1, 30), 1, [b"a%d" % index for index in range(1, 30)])
    with LogWriter(log, max_count=7, sync=False) as writer:
        writer.append_many(range(20, 60), 4, [b"b%d" % i * (100_000 if i == 31 else 1) for i in range(20, 60)])
    write_snapshot(log, index=57, term=4, live=LiveSet.parse("2,4,19-21,25,28,31,33"), sync=False)
    before = live_payloads(log)
    result = _clump(log, request=ClumpOptions(min_ranges=1))
    assert under_the_maps(log, before) == before
    segment = open_log(log).segment(result.receipts[0].output)
    assert [bool(crc) for crc in segment.crc.tolist()] == [False, False, False, *[True] * 6]
