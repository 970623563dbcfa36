"""`compactor blocks compact` as real processes: killed, stopped and woken too late, and two at once. Whoever comes next
takes over what nobody works on, and nothing is lost, done twice or parked.
"""

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

from compaction.blocks.index.claims import STRAY_CLAIM, claim
from compaction.blocks.index.tables import HOLDERS
from compaction.blocks.model import SECOND
from compaction.blocks.store import BlockStore
from compaction.local.processes.process import this_process
from compaction.storage.opened import Holder
from support.stores.block_commands import BlockCommands, in_folder
from support.stores.block_index import check
from support.stores.block_jobs import orphans

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
        assert killed.wait(120) == -signal.SIGKILL, killed.communicate()
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
        out, error = zombie.communicate(timeout=120)
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
        out, error = racer.communicate(timeout=300)
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
        claim(store.index, job="cluster", token=1, sources=ids, now=before, output_level=1)
    for command in (("compact", "--all"), ("plan", "--all"), ("inspect",)):
        result = blocks.run(*command)
        assert result.exit_code == 1, command
        assert "job cluster has 2 blocks since 1h: claimed by a cluster" in result.output
    with blocks.opened() as store:
        assert [job.job for job in store.open_jobs()] == ["cluster"]
    assert blocks.run("compact", "--all", "--take-over").exit_code == 0
    assert_merged(blocks, rows=100)
