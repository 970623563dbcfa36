"""Workers of blocks as real processes: killed, stopped and woken too late; and many that race for one job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import STRAY_CLAIM, IndexRefusal
from compaction.blocks.index.claims import claim as local_claims_claim
from compaction.blocks.index.tables import HOLDERS
from compaction.blocks.model import SECOND
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.local.processes.process import this_process
from compaction.storage.opened import Holder
from crash.block_worker import exit_codes, order, start
from crash.mortal_worker import Mortal, attempt
from support.blocks.block_commands import BlockCommands, in_folder
from support.blocks.block_stores import check, content, fill
from support.blocks.blocks import assert_tidy, claim, job_of, orphans, run
from support.clocks import PATIENCE_SECONDS
from support.faults.store_faults import When
from support.processes.worker_ports import ThreadEngine


def prepared(connection: BlockStoreConnection, store: BlockStore, number: int) -> BlockJob:
    """A job over two blocks of a tenant of its own, claimed with token 1."""
    tenant = f"tenant-{number}"
    ids = fill(store, [10 * number, 10 * number + 1], tenant=tenant)
    job = job_of(connection, ids, name=f"job-{number}", tenant=tenant)
    claim(store, job, 1)
    return job


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()


@pytest.fixture
def calls(connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine) -> list[str]:
    """The steps of an attempt at two blocks."""
    counting = Mortal(block_store.index)
    assert (
        attempt(connection, prepared(connection, block_store, 0), engine, counting).outcome is ReportOutcome.SUCCEEDED
    )
    return counting.calls


def moments(calls: list[str]) -> list[tuple[int, When]]:
    """Where it is killed: while it reads, before and after its upload, in the commit, before and after its end."""
    put, commit = calls.index("objects put"), len(calls) - 1
    assert calls[commit] == "COMMIT"
    change = next(number for number, name in enumerate(calls) if name.startswith("UPDATE block_index"))
    return [
        (put // 2, When.BEFORE),
        (put, When.BEFORE),
        (put, When.AFTER),
        (change + 3, When.AFTER),
        (commit, When.BEFORE),
        (commit, When.AFTER),
    ]


def test_a_killed_worker_is_followed_by_one_that_ends_the_job(
    calls: list[str], connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    killed = moments(calls)
    jobs = [prepared(connection, block_store, number) for number in range(1, len(killed) + 1)]
    before = content(block_store)
    orders = [
        order(connection, job, at=at, when=when, sent=signal.SIGKILL)
        for job, (at, when) in zip(jobs, killed, strict=True)
    ]
    assert exit_codes(*orders) == [-signal.SIGKILL] * len(orders)
    check(block_store.index)
    assert content(block_store) == before
    committed = []
    for job in jobs:
        try:
            claim(block_store, job, 2)
        except BlockClaimError:
            committed.append(job)
        report = run(connection, job, engine, token=2)
        assert report.outcome is ReportOutcome.SUCCEEDED
        assert report.receipt is not None
        assert report.receipt.token == (1 if job in committed else 2)
        assert content(block_store) == before
    assert committed == [jobs[-1]], "only the last one was killed after its commit"
    assert_tidy(block_store)


def test_a_worker_that_slept_over_its_upload_changes_nothing(
    calls: list[str], connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """It is stopped when it is about to upload; its successor commits, and what that made is compacted further. Then it
    wakes, uploads, and wants to commit.
    """
    job = prepared(connection, block_store, 1)
    before = content(block_store)
    asleep = order(connection, job, at=calls.index("objects put"), when=When.BEFORE, sent=signal.SIGSTOP)
    with start(asleep) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        claim(block_store, job, 2)
        second = run(connection, job, engine, token=2)
        assert second.outcome is ReportOutcome.SUCCEEDED
        (made,) = [block for block in block_store.live().blocks if block.tenant == job.tenant]
        unchanged = block_store.objects.head(made.path)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        told = json.loads(process.stdout.read().splitlines()[-1])
    assert (told["outcome"], told["reason"], told["charged"]) == ("Failed", JobReason.STALE_TOKEN.value, False)
    assert block_store.objects.head(made.path) == unchanged, "not even written again"
    assert content(block_store) == before
    assert orphans(block_store) == ()
    assert_tidy(block_store)


def test_two_coordinators_cannot_give_one_block_to_two_jobs(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = sorted(fill(block_store, range(5)))
    before = content(block_store)
    one, other = job_of(connection, ids[:3], name="one"), job_of(connection, ids[2:], name="other")
    claim(block_store, one, 1)
    with pytest.raises(BlockClaimError) as refused:
        claim(block_store, other, 1)
    assert refused.value.reason == IndexRefusal.SOURCE_CLAIMED
    assert run(connection, other, engine).reason == JobReason.SOURCES_CHANGED
    assert run(connection, one, engine).outcome is ReportOutcome.SUCCEEDED
    assert content(block_store) == before
    assert len(block_store.live().blocks) == 3


# `compactor blocks compact` as real processes: killed, stopped and woken too late, and two at once. Whoever comes
# next takes over what nobody works on, and nothing is lost, done twice or parked.

AT_COMMIT = """
import os, sys, time
from compaction.blocks.index import registering

commit, sent = registering.replace, int(sys.argv.pop(1))

def replace(*args, **kwargs):
    os.kill(os.getpid(), sent)
    time.sleep(1)  # the signal may take this thread a little later than it was sent
    return commit(*args, **kwargs)

registering.replace = replace
from compaction.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def blocks(tmp_path: Path) -> BlockCommands:
    return in_folder(tmp_path / "store")


@contextmanager
def compacting(blocks: BlockCommands, sent: signal.Signals) -> Iterator[subprocess.Popen[str]]:
    """A process that compacts, and gets a signal when it is about to commit."""
    command = [sys.executable, "-c", AT_COMMIT, str(int(sent)), "blocks", "compact", "--all"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | blocks.environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_stopped(process: subprocess.Popen[str]) -> None:
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert state is not None
    assert state.si_code == os.CLD_STOPPED, process.communicate()


def be_silent(store: BlockStore, seconds: int) -> None:
    past = update(HOLDERS).values(renewed_at=HOLDERS.c.renewed_at - seconds * SECOND)
    store.index.write(lambda connection: connection.execute(past))


def assert_merged(blocks: BlockCommands, *, rows: int) -> None:
    assert [(item["level"], item["rows"]) for item in blocks.data("list")["items"]] == [(1, rows)]
    assert blocks.data("verify")["bad"] == 0
    with blocks.opened() as store:
        assert store.open_jobs() == ()
        assert orphans(store) == ()
        check(store.index)


def test_what_a_killed_process_had_is_taken_over_at_once(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2, 3)
    with compacting(blocks, signal.SIGKILL) as killed:
        assert killed.wait(PATIENCE_SECONDS) == -signal.SIGKILL, killed.communicate()
    said = f"process {killed.pid} on "
    debt = blocks.run("inspect", "-o", "json")
    assert debt.exit_code == 1
    (held,) = json.loads(debt.stdout)["openJobs"]
    assert (held["blocks"], held["state"], held["parked"]) == (ids, "Dead", True)
    assert held["process"]["pid"] == killed.pid
    table = blocks.run("inspect")
    assert table.exit_code == 1
    assert said in table.stdout
    assert "claimed it and has ended" in table.stdout
    plan = blocks.run("plan", "--all", "-o", "json")
    assert plan.exit_code == 1
    assert said in plan.stderr
    assert [job["sources"] for job in json.loads(plan.stdout)["jobs"]] == [ids], "it is planned as compact would"
    result = blocks.run("compact", "--all")
    assert result.exit_code == 0, result.output
    assert said in result.stderr
    assert "taken over" in result.stderr
    with blocks.opened() as store:
        # Its upload was its own attempt's: an orphan, which is collected in time.
        assert len(orphans(store)) <= 1
    assert [(item["level"], item["rows"]) for item in blocks.data("list")["items"]] == [(1, 150)]
    assert blocks.run("inspect").exit_code == blocks.run("plan").exit_code == 0


def test_a_stopped_process_is_left_alone_until_it_was_silent_and_commits_nothing_when_it_wakes_up(
    blocks: BlockCommands,
) -> None:
    blocks.add(1, 2, 3)
    with compacting(blocks, signal.SIGSTOP) as zombie:
        wait_stopped(zombie)
        left = blocks.run("compact", "--all")
        assert left.exit_code == 0, left.output
        assert f"process {zombie.pid} on " in left.stderr
        assert "works on it" in left.stderr
        assert "nothing is due that no open job has" in left.stdout
        with blocks.opened() as store:
            be_silent(store, 120)
        taken = blocks.run("compact", "--all", "-o", "json")
        assert taken.exit_code == 0, taken.output
        assert "has given no sign of life for 2m" in taken.stderr
        (job,) = json.loads(taken.stdout)["jobs"]
        assert (job["merged"], job["receipt"]["token"]) == (3, 2)
        zombie.send_signal(signal.SIGCONT)
        out, error = zombie.communicate(timeout=PATIENCE_SECONDS)
    assert zombie.returncode == 0, error
    assert "error:" not in error
    assert "1 job left to another process" in out
    assert "StaleToken" in out
    assert_merged(blocks, rows=150)


@pytest.mark.parametrize(
    ("fields", "silent", "taken"),
    [
        ({"started": "before"}, 0, True),  # the pid is used again, by the process of this test
        ({}, 0, False),
        ({"place": "another machine", "pid": 1}, 0, False),
        ({"place": "another machine", "pid": 1}, 61, True),
    ],
)
def test_a_holder_is_known_by_machine_pid_and_start(
    blocks: BlockCommands, fields: dict[str, object], silent: int, taken: bool
) -> None:
    ids = blocks.add(1, 2)
    holder: Holder = replace(this_process().holder, **fields)  # type: ignore[arg-type]
    with blocks.opened() as store:
        store.claim(job="theirs", token=1, sources=ids, output_level=1, holder=holder)
        be_silent(store, silent)
    result = blocks.run("compact", "--all")
    assert result.exit_code == 0, result.output
    assert ("taken over" in result.stderr) is taken
    with blocks.opened() as store:
        assert [job.job for job in store.open_jobs()] == ([] if taken else ["theirs"])
    assert len(blocks.data("list")["items"]) == (1 if taken else 2)


def test_two_that_race_merge_everything_once_and_neither_calls_it_an_error(blocks: BlockCommands) -> None:
    blocks.add(*range(1, 25))
    command = [sys.executable, "-m", "compaction.cli.main", "blocks", "compact", "--all", "--levels", "2:1h,2:1h,2:1h"]
    environment = os.environ | blocks.environment
    racers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    for racer in racers:
        out, error = racer.communicate(timeout=PATIENCE_SECONDS)
        assert racer.returncode == 0, (out, error)
        assert "error:" not in error
    blocks.data("compact", "--all", "--levels", "2:1h,2:1h,2:1h")
    assert sum(item["rows"] for item in blocks.data("list")["items"]) == 24 * 50
    assert blocks.data("verify")["bad"] == 0
    with blocks.opened() as store:
        assert store.open_jobs() == ()
        assert orphans(store) == ()
        check(store.index)


def test_what_a_cluster_claimed_is_not_taken_over_and_parks_visibly(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2)
    with blocks.opened() as store:
        before = store.now() - STRAY_CLAIM - SECOND
        local_claims_claim(store.index, job="cluster", token=1, sources=ids, now=before, output_level=1)
    for command in (("compact", "--all"), ("plan", "--all"), ("inspect",)):
        result = blocks.run(*command)
        assert result.exit_code == 1, command
        assert "job cluster has 2 blocks since 1h: claimed by a cluster" in result.output
    with blocks.opened() as store:
        assert [job.job for job in store.open_jobs()] == ["cluster"]
    assert blocks.run("compact", "--all", "--take-over").exit_code == 0
    assert_merged(blocks, rows=100)
