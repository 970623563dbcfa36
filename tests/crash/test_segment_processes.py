"""Real processes: killed, stopped and woken late, racing for the lock, forking while they hold it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.directory import lock
from compaction.segments.errors import LockHeldError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from crash.segment_racers import JOB, hold, race, rewrite
from support.stores.segment_logs import content, leftovers


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
    outcomes = sorted(results.get(timeout=60) for _ in racers)
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
    pid = ready.get(timeout=60)
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
