"""Several groups in one commit: one that must not be committed, or that the disk refuses, costs the others nothing."""

from __future__ import annotations

import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.errors import StaleTokenError
from compaction.segments import sweep
from compaction.segments.commit import commit, fence
from compaction.segments.commit.records import GroupReceipt, RewrittenGroup
from compaction.segments.errors import InvalidGroupError, SourcesChangedError, StoreIOError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.model import segment_name
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import DyingFilesystem
from support.segments.segment_logs import content, leftovers

JOB = "job"
GROUPS = [[segment_name(n), segment_name(n + 1)] for n in (1, 3, 5)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Eight segments of 16 entries, snapshot 112, every fourth live; the job has token 1."""
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=16, sync=False) as writer:
        for index in range(1, 129):
            writer.append(index, 1, b"entry %d" % index * 20)
    write_snapshot(directory, index=112, term=1, live=LiveSet.from_indexes(range(1, 113, 4)), sync=False)
    fence.claim(directory, job=JOB, token=1, holder="test")
    return directory


def rewritten(log: Path, sources: list[str]) -> RewrittenGroup:
    live = open_log(log).live
    assert live is not None
    return kernel.rewrite_group(log, sources=sources, live=live, limits=SegmentLimits(), job=JOB, token=1)


def together(log: Path, groups: list[RewrittenGroup]) -> tuple[commit.GroupOutcome, ...]:
    return commit.commit_groups(log, job=JOB, token=1, groups=groups, holder="test", now=5.0)


def test_receipts_come_in_the_order_of_the_groups(log: Path) -> None:
    before = content(log)
    groups = [rewritten(log, sources) for sources in (GROUPS[2], GROUPS[0], GROUPS[1])]
    outcomes = together(log, groups)
    assert [outcome.sources for outcome in outcomes if isinstance(outcome, GroupReceipt)] == [g.sources for g in groups]
    assert content(log) == before
    assert leftovers(log) == []
    assert {t.name for t in fence.read(log).tombstones} == {sources[1] for sources in GROUPS}


def test_the_syncs_are_shared(log: Path) -> None:
    """Six for any number of groups, and four of the snapshot: that is what a commit of several is for."""
    groups = [rewritten(log, sources) for sources in GROUPS]
    with DyingFilesystem() as counter:
        together(log, groups)
    assert counter.calls.count("sync") == 6 + 4


def test_repeated_it_returns_the_first_receipts_and_commits_the_rest(log: Path) -> None:
    first, second = rewritten(log, GROUPS[0]), rewritten(log, GROUPS[1])
    (receipt,) = together(log, [first])
    outcomes = together(log, [first, second])
    assert outcomes[0] == receipt
    assert isinstance(outcomes[1], GroupReceipt)
    assert together(log, [second, first]) == (outcomes[1], receipt)


def test_a_changed_source_fails_its_own_group_only(log: Path) -> None:
    before = content(log)
    groups = [rewritten(log, sources) for sources in GROUPS]
    path = log / GROUPS[1][1]
    shutil.copyfile(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)
    outcomes = together(log, groups)
    assert [type(outcome) for outcome in outcomes] == [GroupReceipt, SourcesChangedError, GroupReceipt]
    assert str(path) in str(outcomes[1])
    assert content(log) == before
    assert leftovers(log) == []


def test_groups_that_overlap_are_not_committed_together(log: Path) -> None:
    before = content(log)
    inner, outer = rewritten(log, GROUPS[1]), rewritten(log, [*GROUPS[0], *GROUPS[1]])
    outcomes = together(log, [inner, outer])
    assert isinstance(outcomes[0], SourcesChangedError)
    assert "overlaps" in str(outcomes[0])
    assert isinstance(outcomes[1], GroupReceipt)
    assert content(log) == before
    assert leftovers(log) == []


def test_a_group_given_twice_is_refused_and_its_output_kept(log: Path) -> None:
    group = rewritten(log, GROUPS[0])
    with pytest.raises(InvalidGroupError, match="twice"):
        together(log, [group, group])
    assert isinstance(together(log, [group])[0], GroupReceipt)


def test_the_output_of_another_attempt_is_left_alone(log: Path) -> None:
    group = rewritten(log, GROUPS[0])
    (outcome,) = together(log, [replace(group, partial=group.partial.replace(".1.", ".2."))])
    assert isinstance(outcome, SourcesChangedError)
    assert leftovers(log) == [group.partial]


def test_a_stale_token_commits_none_and_leaves_nothing(log: Path) -> None:
    before = content(log)
    groups = [rewritten(log, sources) for sources in GROUPS]
    fence.claim(log, job=JOB, token=2, holder="next")
    with pytest.raises(StaleTokenError):
        together(log, groups)
    assert content(log) == before
    assert leftovers(log) == []


def test_a_disk_that_refuses_once_fails_exactly_what_was_not_committed(log: Path, tmp_path: Path) -> None:
    """At each call: a group has a receipt if and only if its output is in place."""
    groups = [rewritten(log, sources) for sources in GROUPS]
    before = content(log)
    with DyingFilesystem() as counter:
        together(shutil.copytree(log, tmp_path / "counted", symlinks=True), recopied(groups, tmp_path / "counted"))
    seen: set[int] = set()
    for at, name in enumerate(counter.calls):
        copy = shutil.copytree(log, tmp_path / f"log-{at}", symlinks=True)
        moved = recopied(groups, copy)
        with DyingFilesystem(at=at, error=OSError(28, "refused")):
            try:
                outcomes = together(copy, moved)
            except StoreIOError:
                outcomes = ()
        committed = [outcome.output for outcome in outcomes if isinstance(outcome, GroupReceipt)]
        assert content(copy) == before, name
        assert leftovers(copy) == [] or not outcomes, name
        assert [r.output for r in fence.read(copy).receipts] == sorted(committed), name
        assert all((copy / sources[1]).is_symlink() == (sources[0] in committed) for sources in GROUPS), name
        seen.add(len(committed))
    assert seen == {0, 1, 2, 3}


def recopied(groups: list[RewrittenGroup], directory: Path) -> list[RewrittenGroup]:
    """The same groups as they are after the whole directory was copied: every file has another identity."""
    from compaction.segments.directory.fs import regular_identity

    moved = []
    for group in groups:
        identities = [regular_identity(directory / name) for name in (*group.sources, group.partial)]
        assert all(identities)
        moved.append(replace(group, identities=tuple(identities[:-1]), identity=identities[-1]))  # type: ignore[arg-type]
    return moved


# Copies of a log that is being compacted, made as the documentation says: under the log's own lock.

LIMITS = SegmentLimits(max_sources=2)


def compact(log: Path, finished: threading.Event) -> None:
    """Group after group, each swept at once."""
    state = open_log(log)
    assert state.live is not None
    fence.claim(log, job="job", token=1, holder="test")
    for group in plan_log(state, LIMITS).groups:
        done = kernel.rewrite_group(log, sources=group.sources, live=state.live, limits=LIMITS, job="job", token=1)
        commit.commit_group(log, job="job", token=1, group=done, holder="test")
        sweep.sweep(log, grace_seconds=0, now=4e9)
    finished.set()


@pytest.mark.parametrize("attempt", range(3))
def test_a_copy_under_the_lock_is_whole_at_any_moment(tmp_path: Path, attempt: int) -> None:
    log = tmp_path / "log"
    with LogWriter(log, max_count=8, sync=False) as writer:
        for index in range(1, 321):
            writer.append(index, 1, b"entry %d" % index)
    write_snapshot(log, index=312, term=1, live=LiveSet.from_indexes(range(1, 313, 5)), sync=False)
    before, finished, copies = content(log), threading.Event(), 0
    worker = threading.Thread(target=compact, args=(log, finished))
    worker.start()
    try:
        while copies < 3 or not finished.is_set():
            copy = tmp_path / f"copy-{copies}"
            subprocess.run(
                ["flock", str(log / "compaction.lock"), "cp", "-a", "--", str(log), str(copy)],
                check=True,
                timeout=60,
            )
            assert content(copy) == before
            shutil.rmtree(copy)
            copies += 1
    finally:
        worker.join()
    assert content(log) == before
