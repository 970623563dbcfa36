"""Death before, during and after every mutating system call of rewrite, commit, recovery and sweep of segment logs.

After each death: recover, and every live entry is readable as before; nothing half-done is left; a retry with the next
token completes the work exactly once, with a receipt. The state before recovery is checked as well: a reader (or Ra
itself) that opens the log as the dead process left it must find every live entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory import fs
from compaction.segments.errors import LogNotWritableError, SegmentLogError, StoreIOError
from compaction.segments.planning.plan import LogPlan, plan_log
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from support.faults.sudden_death import DyingFilesystem, SuddenDeath, deaths, points
from support.segments.segment_logs import VARIED_LIMITS, Content, content, leftovers, regular, varied_log
from support.timing import at_depth

JOB = "policy-0123456789"
Way = Callable[..., None]
"""How the groups of a job are committed."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "log"
    directory.mkdir()
    varied_log(directory)
    return directory


def _plan(directory: Path) -> LogPlan:
    waiting = frozenset(t.name for t in fence.read(directory).tombstones)
    return plan_log(open_log(directory), VARIED_LIMITS, awaiting_deletion=waiting)


def _rewritten(directory: Path, plan: LogPlan, *, token: int) -> Iterator[RewrittenGroup]:
    """The groups that are not committed yet, each rewritten when it is asked for."""
    live = open_log(directory).live
    assert live is not None
    done = {r.group for r in fence.read(directory).receipts if r.job == JOB}
    for group in plan.groups:
        if "-".join(name[:16] for name in group.sources) not in done:
            yield kernel.rewrite_group(
                directory, sources=group.sources, live=live, limits=VARIED_LIMITS, job=JOB, token=token
            )


def _one_by_one(directory: Path, groups: Iterator[RewrittenGroup], *, token: int, now: float) -> None:
    for group in groups:
        commit.commit_group(directory, job=JOB, token=token, group=group, holder="test", now=now)


def _together(directory: Path, groups: Iterator[RewrittenGroup], *, token: int, now: float) -> None:
    try:
        waiting = list(groups)
    except SegmentLogError:
        # Who rewrites several before a commit removes what one failure leaves of the others.
        for partial in directory.glob("*.partial"):
            partial.unlink()
        raise
    if waiting:
        outcomes = commit.commit_groups(directory, job=JOB, token=token, groups=waiting, holder="test", now=now)
        for outcome in outcomes:
            if isinstance(outcome, SegmentLogError):
                raise outcome


def _run(directory: Path, plan: LogPlan, way: Way, *, token: int, now: float = 1000.0) -> None:
    """One attempt at the whole job, as a worker does it."""
    recovery.recover(directory, now=now)
    way(directory, _rewritten(directory, plan, token=token), token=token, now=now)
    names = [u.name for u in plan.unreferenced]
    commit.commit_unreferenced(directory, job=JOB, token=token, names=names, holder="test", now=now)


def _attempt(directory: Path, plan: LogPlan, token: int, way: Way = _one_by_one) -> None:
    fence.claim(directory, job=JOB, token=token, holder="test", now=1.0)
    _run(directory, plan, way, token=token)


def _check_done(directory: Path, plan: LogPlan, before: Content) -> None:
    assert content(directory) == before
    assert leftovers(directory) == []
    record = fence.read(directory)
    assert record.intents == ()
    receipts = [r.group for r in record.receipts if r.job == JOB]
    assert sorted(receipts) == sorted("-".join(n[:16] for n in g.sources) for g in plan.groups)
    assert {t.name for t in record.tombstones} == {n for g in plan.groups for n in (*g.sources[1:], *g.carried)} | {
        u.name for u in plan.unreferenced
    }
    for group in plan.groups:
        for name in (*group.sources[1:], *group.carried):
            assert (directory / name).readlink() == Path(group.sources[0])
    assert _plan(directory).debt_segments == 0


def test_the_template_has_every_kind_of_work(fresh: Callable[[], Path]) -> None:
    directory = fresh()
    plan = _plan(directory)
    assert [[int(name[:16]) for name in g.sources] for g in plan.groups] == [[3, 6], [9, 10]]
    assert [int(name[:16]) for name in plan.groups[0].carried] == [4, 5]
    assert open_log(directory).orphans == ("0000000000000005.segment",)
    assert [int(u.name[:16]) for u in plan.unreferenced] == [1, 2]
    assert any(left.reason == "DenseEnough" for left in plan.left_alone)


def test_death_at_every_step_of_a_job(fresh: Callable[[], Path]) -> None:
    """Of groups that are committed one by one, as commands do it; workers commit them together (tests/conformance)."""
    directory = fresh()
    before, plan = content(directory), _plan(directory)

    def undisturbed() -> DyingFilesystem:
        with DyingFilesystem() as counter:
            _attempt(directory, plan, 1)
        _check_done(directory, plan, before)
        return counter

    calls = undisturbed().calls
    assert len(calls) > 45
    for number, when, name in deaths(calls):
        directory = fresh()
        with DyingFilesystem(at=number, when=when), pytest.raises(SuddenDeath):
            _attempt(directory, plan, 1)
        assert content(directory) == before, f"{when} {name}: not readable as it was left"
        recovery.recover(directory, now=1000.0)
        assert content(directory) == before, f"{when} {name}: not readable after recovery"
        assert not recovery.is_needed(directory)
        assert not recovery.recover(directory, now=1000.0).changed
        _attempt(directory, plan, token=fence.high_water(directory, JOB) + 1)
        # A partial of the dead attempt may remain; the sweeper collects it, and nothing else yet.
        swept = sweep.sweep(directory, now=1001.0, grace_seconds=600)
        assert all(item.name.endswith(".partial") for item in swept.deleted)
        _check_done(directory, plan, before)


@pytest.mark.parametrize("way", [_one_by_one, _together])
def test_death_at_every_step_of_recovery(fresh: Callable[[], Path], way: Way) -> None:
    directory = fresh()
    before, plan = content(directory), _plan(directory)
    with DyingFilesystem() as counter:
        _attempt(directory, plan, 1, way)
    for at in points(counter.calls):
        name = counter.calls[at]
        if not name.startswith(("rename", "link", "symlink", "unlink")):
            continue

        def crashed(at: int = at) -> Path:
            directory = fresh()
            with DyingFilesystem(at=at, when="after"), pytest.raises(SuddenDeath):
                _attempt(directory, plan, 1, way)
            return directory

        crash = crashed()
        if not recovery.is_needed(crash):
            continue

        def undisturbed(crash: Path = crash) -> DyingFilesystem:
            with DyingFilesystem() as counter:
                recovery.recover(crash, now=1000.0)
            return counter

        # "before" the next call leaves the same disk as "after" this one.
        for number, when, step in deaths(undisturbed().calls, ("after", "during")):
            directory = crashed()
            with DyingFilesystem(at=number, when=when), pytest.raises(SuddenDeath):
                recovery.recover(directory, now=1000.0)
            assert content(directory) == before, f"{name}, then {when} {step}"
            recovery.recover(directory, now=1000.0)
            assert content(directory) == before, f"{name}, then {when} {step}, then recovery"
            assert not recovery.is_needed(directory)
            _attempt(directory, plan, token=fence.high_water(directory, JOB) + 1)
            sweep.sweep(directory, now=1001.0, grace_seconds=600)
            _check_done(directory, plan, before)


def test_death_at_every_step_of_a_sweep(fresh: Callable[[], Path]) -> None:
    directory = fresh()
    before, plan = content(directory), _plan(directory)

    def ready() -> Path:
        directory = fresh()
        _attempt(directory, plan, token=1)
        (directory / "0000000000000001.dead-job.7.partial").write_bytes(b"x")
        return directory

    def swept(directory: Path) -> None:
        sweep.sweep(directory, now=2000.0, grace_seconds=600)

    directory = ready()

    def undisturbed() -> DyingFilesystem:
        with DyingFilesystem() as counter:
            swept(directory)
        return counter

    for number, when, name in deaths(undisturbed().calls):
        directory = ready()
        with DyingFilesystem(at=number, when=when), pytest.raises(SuddenDeath):
            swept(directory)
        assert content(directory) == before, f"{when} {name}"
        swept(directory)
        assert content(directory) == before, f"{when} {name}, then again"
        assert leftovers(directory) == []
        assert not fence.read(directory).tombstones
        assert not open_log(directory).links
        gone = {u.name for u in plan.unreferenced}
        assert gone.isdisjoint(regular(directory))
        assert not sweep.sweep(directory, now=2001.0, grace_seconds=600).deleted


def _refused(refused: DyingFilesystem, directory: Path, plan: LogPlan, way: Way) -> None:
    with refused:
        _attempt(directory, plan, 1, way)


def _error_of(call: Callable[[], None]) -> Exception | None:
    try:
        call()
    except (StoreIOError, LogNotWritableError) as error:
        return error
    return None


REFUSALS = (28, 5, 30)
"""No space, input/output error, read-only."""


@pytest.mark.parametrize("way", [_one_by_one, _together])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_refusing_disk_leaves_nothing_behind(fresh: Callable[[], Path], lasting: bool, way: Way) -> None:
    """At every call: an error that names the log, or success. Of a short run each call sees one of the three, and all
    come in turn; others when the disk goes on refusing.
    """
    directory = fresh()
    before, plan = content(directory), _plan(directory)
    with DyingFilesystem() as counter:
        _attempt(directory, plan, 1, way)
    for turn, at in enumerate(points(counter.calls), start=int(lasting)):
        for number in at_depth(short=REFUSALS[turn % len(REFUSALS) :][:1], deep=REFUSALS):
            directory = fresh()
            refused = DyingFilesystem(at=at, error=OSError(number, "refused"), lasting=lasting)
            error = _error_of(partial(_refused, refused, directory, plan, way))
            where = f"{counter.calls[at]}, error {number}"
            assert error is None or str(directory) in str(error), where
            assert content(directory) == before, where
            if not lasting:
                assert leftovers(directory) == [], where
            recovery.recover(directory)
            _attempt(directory, plan, token=fence.high_water(directory, JOB) + 1)
            sweep.sweep(directory, now=1001.0, grace_seconds=600)
            _check_done(directory, plan, before)


@pytest.mark.parametrize("way", [_one_by_one, _together])
def test_content_is_synced_before_it_gets_its_name(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """Every file that is renamed or linked to a name that counts was synced after its last write."""
    import os

    unsynced: set[int] = set()
    write, sync, rename, link = fs.write, fs.sync, fs.rename, fs.link

    def spy_write(fd: int, buffers: list[bytes]) -> None:
        unsynced.add(os.fstat(fd).st_ino)
        write(fd, buffers)

    def spy_sync(fd: int) -> None:
        unsynced.discard(os.fstat(fd).st_ino)
        sync(fd)

    def spy(move: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def moved(source: Path, target: Path) -> None:
            assert os.lstat(source).st_ino not in unsynced, f"{source.name} -> {target.name}"
            move(source, target)

        return moved

    monkeypatch.setattr(fs, "write", spy_write)
    monkeypatch.setattr(fs, "sync", spy_sync)
    monkeypatch.setattr(fs, "rename", spy(rename))
    monkeypatch.setattr(fs, "link", spy(link))
    directory = fresh()
    _attempt(directory, _plan(directory), 1, way)
