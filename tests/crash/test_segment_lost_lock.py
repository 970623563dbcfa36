"""A person deletes `compaction.lock` while its holder sleeps, and others go on: the sleeper must destroy nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import StaleTokenError
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory import fs, lock
from compaction.segments.errors import LockLostError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import DyingFilesystem, points
from support.stores.segment_logs import content, leftovers

JOB = "job"
NAMES = [f"{number:016d}.segment" for number in range(1, 6)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    fill(directory)
    return directory


def fill(directory: Path) -> None:
    """Six segments of 16 entries, snapshot 80, every fourth live."""
    with LogWriter(directory, max_count=16, sync=False) as writer:
        for index in range(1, 97):
            writer.append(index, 1, b"entry %d" % index * 20)
    write_snapshot(directory, index=80, term=1, live=LiveSet.from_indexes(range(1, 81, 4)), sync=False)


def rewritten(log: Path, sources: list[str], token: int) -> RewrittenGroup:
    live = open_log(log).live
    assert live is not None
    return kernel.rewrite_group(log, sources=sources, live=live, limits=SegmentLimits(), job=JOB, token=token)


def committed(log: Path, group: RewrittenGroup, token: int) -> None:
    commit.commit_group(log, job=JOB, token=token, group=group, holder=f"attempt {token}", timeout=0)


def committed_together(log: Path, groups: list[RewrittenGroup], token: int) -> None:
    commit.commit_groups(log, job=JOB, token=token, groups=groups, holder=f"attempt {token}", timeout=0)


def overtake(log: Path) -> None:
    """The lock's file is deleted; the next attempt claims, rewrites more, commits."""
    (log / lock.LOCK_FILE).unlink()
    token = fence.high_water(log, JOB) + 1
    fence.claim(log, job=JOB, token=token, holder="new", timeout=0)
    recovery.recover(log, timeout=0)
    sources = [name for name in NAMES if not (log / name).is_symlink()]
    committed(log, rewritten(log, sources, token), token)


def asleep_at(number: int, log: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """At mutating call `number` of the next commit, everybody else goes on first."""
    calls: list[str] = []

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == number + 1:
                for method, function in originals.items():
                    monkeypatch.setattr(fs, method, function)
                overtake(log)
            return original(*args, **kwargs)

        return call

    originals = {name: getattr(fs, name) for name in ("create", "write", "sync", "link", "symlink", "rename", "unlink")}
    for name, original in originals.items():
        monkeypatch.setattr(fs, name, wrapped(name, original))
    return calls


def test_a_sleeper_before_its_commit_stops(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep between its checks and its first change."""
    before = content(log)
    fence.claim(log, job=JOB, token=1, holder="zombie")
    group = rewritten(log, NAMES[:3], 1)
    checked = commit._check_files

    def slow(directory: Path, group: RewrittenGroup, partial: Path) -> None:
        checked(directory, group, partial)
        monkeypatch.setattr(commit, "_check_files", checked)
        overtake(log)

    monkeypatch.setattr(commit, "_check_files", slow)
    with pytest.raises(LockLostError):
        committed(log, group, 1)
    assert content(log) == before
    record = fence.read(log)
    assert (record.claimed(JOB), [r.token for r in record.receipts], record.intents) == (2, [2], ())
    assert leftovers(log) == []


def test_a_sleeper_before_the_commit_point_stops(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep after its intent and its rename: the others' recovery has thrown both away."""
    before = content(log)
    fence.claim(log, job=JOB, token=1, holder="zombie")
    group = rewritten(log, NAMES[:3], 1)
    rename = fs.rename

    def slow(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name.endswith(".compacting"):
            monkeypatch.setattr(fs, "rename", rename)
            overtake(log)

    monkeypatch.setattr(fs, "rename", slow)
    with pytest.raises(LockLostError):
        committed(log, group, 1)
    assert content(log) == before
    assert [r.token for r in fence.read(log).receipts] == [2]
    assert leftovers(log) == []


def test_the_fence_is_asked_again_before_the_commit_point(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file was moved away and moved back: only the fence tells what happened meanwhile."""
    before = content(log)
    fence.claim(log, job=JOB, token=1, holder="zombie")
    group = rewritten(log, NAMES[:3], 1)
    rename = fs.rename

    def slow(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name.endswith(".compacting"):
            monkeypatch.setattr(fs, "rename", rename)
            (log / lock.LOCK_FILE).rename(log.parent / "moved")
            fence.claim(log, job=JOB, token=2, holder="new", timeout=0)
            (log.parent / "moved").rename(log / lock.LOCK_FILE)

    monkeypatch.setattr(fs, "rename", slow)
    with pytest.raises(StaleTokenError):
        committed(log, group, 1)
    recovery.recover(log)
    assert content(log) == before
    assert not open_log(log).links


def test_an_intent_that_was_voided_meanwhile_is_noticed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before, but nobody claimed: another's recovery has thrown the intent away."""
    before = content(log)
    fence.claim(log, job=JOB, token=1, holder="zombie")
    group = rewritten(log, NAMES[:3], 1)
    rename = fs.rename

    def slow(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name.endswith(".compacting"):
            monkeypatch.setattr(fs, "rename", rename)
            (log / lock.LOCK_FILE).rename(log.parent / "moved")
            assert recovery.recover(log, timeout=0).discarded
            (log.parent / "moved").rename(log / lock.LOCK_FILE)

    monkeypatch.setattr(fs, "rename", slow)
    with pytest.raises(LockLostError):
        committed(log, group, 1)
    assert content(log) == before
    assert leftovers(log) == []


@pytest.mark.parametrize("groups", [[NAMES[:3]], [NAMES[:2], NAMES[2:4]]], ids=["one group", "two together"])
def test_wherever_it_slept_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[list[str]]
) -> None:
    """Asleep before each of the system calls up to the commit point, and beyond."""

    def ready(name: str) -> tuple[Path, list[RewrittenGroup]]:
        log = tmp_path / name
        fill(log)
        fence.claim(log, job=JOB, token=1, holder="zombie")
        return log, [rewritten(log, sources, 1) for sources in groups]

    log, outputs = ready("counted")
    with DyingFilesystem() as counter:
        committed_together(log, outputs, 1)
    assert len(counter.calls) > 15
    for number in points(counter.calls):
        log, outputs = ready(f"log-{number}")
        before = content(log)
        with monkeypatch.context() as patch:
            asleep_at(number, log, patch)
            # Any other error would claim to know what became of the groups.
            with suppress(LockLostError):
                committed_together(log, outputs, 1)
        assert content(log) == before, counter.calls[number]
        assert fence.high_water(log, JOB) == 2, counter.calls[number]
        recovery.recover(log)
        assert content(log) == before, counter.calls[number]
        assert all(name.endswith(".partial") for name in leftovers(log)), counter.calls[number]
