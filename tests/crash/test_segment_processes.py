"""Real processes: killed, stopped and woken late, racing for the lock, forking while they hold it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import StaleTokenError
from compaction.segments import sweep
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory import fs, lock
from compaction.segments.errors import LockHeldError, LockLostError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.clocks import PATIENCE_SECONDS
from support.faults.sudden_death import DyingFilesystem, points
from support.segments.segment_logs import content, leftovers

# What the processes of tests/crash do: in a module of their own, so that a spawned interpreter can import it.

JOB = "job"


def rewrite(log: Path, token: int) -> RewrittenGroup:
    """The first group of the log's plan, rewritten by attempt `token`."""
    state = open_log(log)
    assert state.live is not None
    groups = plan_log(state, SegmentLimits()).groups
    return kernel.rewrite_group(
        log, sources=groups[0].sources, live=state.live, limits=SegmentLimits(), job=JOB, token=token
    )


def race(log: Path, token: int, results: multiprocessing.Queue[str]) -> None:
    """A whole attempt; its outcome goes to `results`."""
    try:
        fence.claim(log, job=JOB, token=token, holder=f"racer-{token}")
        group = rewrite(log, token)
        commit.commit_group(log, job=JOB, token=token, group=group, holder=f"racer-{token}")
        results.put("committed")
    except Exception as error:  # noqa: BLE001  (whatever ends a racer is its result)
        results.put(type(error).__name__)


def hold(log: Path, seconds: float, ready: multiprocessing.Queue[int]) -> None:
    """Hold the log's lock; says its process id when it has it."""
    with lock.hold(log, holder="slow", job="slow-job"):
        ready.put(os.getpid())
        time.sleep(seconds)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five segments of 16 entries, snapshot 64, every fourth live."""
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=16) as writer:
        for index in range(1, 81):
            writer.append(index, 1, b"entry %d" % index * 20)
    write_snapshot(directory, index=64, term=1, live=LiveSet.from_indexes(range(1, 65, 4)))
    return directory


CHILD = """
    import os, signal, sys
    from pathlib import Path
    from compaction.segments.commit import commit, fence
    from compaction.segments.directory import fs
    from compaction.segments.planning.unreferenced import SegmentLimits
    from compaction.segments.planning.plan import plan_log
    from compaction.segments.reading.view import open_log
    from compaction.segments.rewriting import kernel
    log, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    state = open_log(log)
    fence.claim(log, job="job", token=1, holder="child")
    sources = plan_log(state, SegmentLimits()).groups[0].sources
    group = kernel.rewrite_group(
        log, sources=sources, live=state.live, limits=SegmentLimits(), job="job", token=1
    )
    original, seen = getattr(fs, name), 0
    def deadly(*args, **kwargs):
        global seen
        seen += 1
        if seen == count:
            {death}
        return original(*args, **kwargs)
    setattr(fs, name, deadly)
    commit.commit_group(log, job="job", token=1, group=group, holder="child")
"""


@pytest.mark.parametrize(
    ("call", "count"),
    [("rename", 2), ("link", 1), ("rename", 3), ("symlink", 1), ("symlink", 3), ("rename", 7), ("unlink", 8)],
)
def test_a_killed_process_is_recovered_and_its_work_done_once(log: Path, call: str, count: int) -> None:
    before = content(log)
    code = textwrap.dedent(CHILD).replace("{death}", "os.kill(os.getpid(), signal.SIGKILL)")
    ended = subprocess.run([sys.executable, "-c", code, str(log), call, str(count)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert content(log) == before
    recovery.recover(log)
    assert content(log) == before
    fence.claim(log, job=JOB, token=2, holder="second")
    if not fence.read(log).receipts:
        commit.commit_group(log, job=JOB, token=2, group=rewrite(log, 2), holder="second")
    assert len(fence.read(log).receipts) == 1
    sweep.sweep(log, grace_seconds=600)
    assert leftovers(log) == []
    assert content(log) == before


def test_a_stopped_process_wakes_after_another_has_committed(log: Path) -> None:
    """A real SIGSTOP between rewrite and commit; the woken process ends with StaleTokenError."""
    before = content(log)
    code = (
        textwrap.dedent(CHILD)
        .replace("{death}", "pass")
        .replace("commit.commit_group(log", 'print("ready", flush=True); sys.stdin.readline(); commit.commit_group(log')
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(log), "rename", "99"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGSTOP)
    fence.claim(log, job=JOB, token=2, holder="second")
    commit.commit_group(log, job=JOB, token=2, group=rewrite(log, 2), holder="second")
    child.send_signal(signal.SIGCONT)
    _, errors = child.communicate("go\n")
    assert child.returncode == 1
    assert "StaleLogTokenError" in errors
    assert [r.holder for r in fence.read(log).receipts] == ["second"]
    assert leftovers(log) == []
    assert content(log) == before


def test_racing_attempts_commit_exactly_once(log: Path) -> None:
    before = content(log)
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    racers = [context.Process(target=race, args=(log, token, results)) for token in (1, 2, 3)]
    for racer in racers:
        racer.start()
    outcomes = sorted(results.get(timeout=PATIENCE_SECONDS) for _ in racers)
    for racer in racers:
        racer.join()
    assert set(outcomes) <= {"committed", "StaleLogTokenError", "SourcesChangedError", "IndexError", "LogChangedError"}
    sweep.sweep(log, grace_seconds=0)
    record = fence.read(log)
    assert len(record.receipts) == outcomes.count("committed") == 1
    assert record.high_water(JOB) == 3
    assert leftovers(log) == []
    assert content(log) == before


def test_a_lock_held_too_long_is_reported_with_its_holder(log: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready: multiprocessing.Queue[int] = context.Queue()
    holder = context.Process(target=hold, args=(log, 60.0, ready))
    holder.start()
    pid = ready.get(timeout=PATIENCE_SECONDS)
    with pytest.raises(LockHeldError, match=rf"by slow \(pid {pid} on .*, job slow-job\) since 20"):
        fence.claim(log, job=JOB, token=1, holder="me", timeout=0.05)
    holder.kill()
    holder.join()
    fence.claim(log, job=JOB, token=1, holder="me", timeout=5)
    assert (log / lock.LOCK_FILE).exists()


def test_children_do_not_inherit_the_lock(log: Path) -> None:
    """Neither an executed program nor a forked child that outlives the block keeps the log locked."""
    with lock.hold(log, holder="parent"):
        program = subprocess.Popen(["sleep", "60"], close_fds=False)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with lock.hold(log, holder="next", timeout=5):
            pass
        with pytest.raises(LockHeldError), lock.hold(log, holder="a"), lock.hold(log, holder="b", timeout=0.01):
            pass
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        program.kill()
        program.wait()


def test_a_dead_holder_with_a_living_child_frees_the_lock(log: Path) -> None:
    code = textwrap.dedent(
        """
        import os, sys, time
        from pathlib import Path
        from compaction.segments.directory import lock
        with lock.hold(Path(sys.argv[1]), holder="dying"):
            child = os.fork()
            if child == 0:
                os.close(1); os.close(2)
                time.sleep(60)
                os._exit(0)
            print(child, flush=True)
            time.sleep(0.1)
            os._exit(9)
        """
    )
    ended = subprocess.run([sys.executable, "-c", code, str(log)], stdout=subprocess.PIPE, text=True, check=False)
    child = int(ended.stdout)
    try:
        os.kill(child, 0)
        with lock.hold(log, holder="next", timeout=5):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


# A person deletes `compaction.lock` while its holder sleeps, and others go on: the sleeper must destroy nothing.

NAMES = [f"{number:016d}.segment" for number in range(1, 6)]


@pytest.fixture
def lost_lock_log(tmp_path: Path) -> Path:
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


def test_a_sleeper_before_its_commit_stops(lost_lock_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep between its checks and its first change."""
    before = content(lost_lock_log)
    fence.claim(lost_lock_log, job=JOB, token=1, holder="zombie")
    group = rewritten(lost_lock_log, NAMES[:3], 1)
    checked = commit._check_files

    def slow(directory: Path, group: RewrittenGroup, partial: Path) -> None:
        checked(directory, group, partial)
        monkeypatch.setattr(commit, "_check_files", checked)
        overtake(lost_lock_log)

    monkeypatch.setattr(commit, "_check_files", slow)
    with pytest.raises(LockLostError):
        committed(lost_lock_log, group, 1)
    assert content(lost_lock_log) == before
    record = fence.read(lost_lock_log)
    assert (record.claimed(JOB), [r.token for r in record.receipts], record.intents) == (2, [2], ())
    assert leftovers(lost_lock_log) == []


def test_a_sleeper_before_the_commit_point_stops(lost_lock_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep after its intent and its rename: the others' recovery has thrown both away."""
    before = content(lost_lock_log)
    fence.claim(lost_lock_log, job=JOB, token=1, holder="zombie")
    group = rewritten(lost_lock_log, NAMES[:3], 1)
    rename = fs.rename

    def slow(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name.endswith(".compacting"):
            monkeypatch.setattr(fs, "rename", rename)
            overtake(lost_lock_log)

    monkeypatch.setattr(fs, "rename", slow)
    with pytest.raises(LockLostError):
        committed(lost_lock_log, group, 1)
    assert content(lost_lock_log) == before
    assert [r.token for r in fence.read(lost_lock_log).receipts] == [2]
    assert leftovers(lost_lock_log) == []


def test_the_fence_is_asked_again_before_the_commit_point(lost_lock_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file was moved away and moved back: only the fence tells what happened meanwhile."""
    before = content(lost_lock_log)
    fence.claim(lost_lock_log, job=JOB, token=1, holder="zombie")
    group = rewritten(lost_lock_log, NAMES[:3], 1)
    rename = fs.rename

    def slow(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name.endswith(".compacting"):
            monkeypatch.setattr(fs, "rename", rename)
            (lost_lock_log / lock.LOCK_FILE).rename(lost_lock_log.parent / "moved")
            fence.claim(lost_lock_log, job=JOB, token=2, holder="new", timeout=0)
            (lost_lock_log.parent / "moved").rename(lost_lock_log / lock.LOCK_FILE)

    monkeypatch.setattr(fs, "rename", slow)
    with pytest.raises(StaleTokenError):
        committed(lost_lock_log, group, 1)
    recovery.recover(lost_lock_log)
    assert content(lost_lock_log) == before
    assert not open_log(lost_lock_log).links


def test_an_intent_that_was_voided_meanwhile_is_noticed(lost_lock_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before, but nobody claimed: another's recovery has thrown the intent away."""
    before = content(lost_lock_log)
    fence.claim(lost_lock_log, job=JOB, token=1, holder="zombie")
    group = rewritten(lost_lock_log, NAMES[:3], 1)
    rename = fs.rename

    def slow(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name.endswith(".compacting"):
            monkeypatch.setattr(fs, "rename", rename)
            (lost_lock_log / lock.LOCK_FILE).rename(lost_lock_log.parent / "moved")
            assert recovery.recover(lost_lock_log, timeout=0).discarded
            (lost_lock_log.parent / "moved").rename(lost_lock_log / lock.LOCK_FILE)

    monkeypatch.setattr(fs, "rename", slow)
    with pytest.raises(LockLostError):
        committed(lost_lock_log, group, 1)
    assert content(lost_lock_log) == before
    assert leftovers(lost_lock_log) == []


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
