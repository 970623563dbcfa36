"""Outages of a real PostgreSQL, and processes that are killed: the index in between is never wrong, only late."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path

import pytest

from chaos.commit_proxy import CommitProxy, Cut
from compaction.blocks.index.claims import claim, high_water, open_jobs
from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.model import RowFingerprint
from compaction.storage.errors import DatabaseError, DatabaseUnavailableError
from support.blocks.block_stores import NOON, blocks_of, check, empty_postgres, output_of
from tools.servers.postgres import PostgresServer

SOURCES = blocks_of(*range(4))
IDS = tuple(block.id for block in SOURCES)
RESULT = BlockReplacement("job", 1, IDS, (output_of(100, SOURCES),), "{}")
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CommitProxy]:
    with CommitProxy(postgres.socket_file) as proxy:
        yield proxy


@pytest.fixture
def remote(postgres: PostgresServer, postgres_index: str, proxy: CommitProxy) -> Iterator[IndexDatabase]:
    """An empty index behind the proxy."""
    empty_postgres(postgres, postgres_index)
    database = IndexDatabase.open(postgres.url(postgres_index, host="127.0.0.1", port=proxy.port))
    yield database
    database.close()


@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT])
def test_the_connection_is_lost_around_the_commit(remote: IndexDatabase, proxy: CommitProxy, cut: Cut) -> None:
    proxy.cut = cut
    registered = register(remote, SOURCES, now=NOON)
    assert set(registered.new + registered.known) == set(IDS)
    proxy.cut = cut
    claim(remote, job="job", token=1, sources=IDS, now=NOON)
    assert high_water(remote, "job") == 1
    proxy.cut = cut
    done = replace(remote, RESULT, clock=lambda: NOON)
    assert done.repeated is (cut is Cut.AFTER_COMMIT), "committed once, and known again by its arguments"
    assert live_blocks(remote).blocks == RESULT.outputs
    assert proxy.cuts == 3
    check(remote)


def test_a_minute_without_the_database(remote: IndexDatabase, proxy: CommitProxy) -> None:
    """The clock is turned, nobody waits: calls are repeated until it is back, or until the patience ends."""
    register(remote, SOURCES, now=NOON)
    claim(remote, job="job", token=1, sources=IDS, now=NOON)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 60:
            proxy.come_back()

    url = remote.engine.url.render_as_string(hide_password=False)
    patient = IndexDatabase.open(url, patience=90, clock=lambda: now[0], sleep=sleep)
    proxy.go_away()
    assert not replace(patient, RESULT, clock=lambda: NOON).repeated
    assert 60 <= now[0] < 90
    assert live_blocks(patient).blocks == RESULT.outputs

    hasty = IndexDatabase.open(
        url, patience=5, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + 1)
    )
    proxy.go_away()
    with pytest.raises(DatabaseUnavailableError, match="Index database"):
        register(hasty, blocks_of(9), now=NOON)
    proxy.come_back()
    assert live_blocks(hasty).blocks == RESULT.outputs
    check(hasty)
    hasty.close()
    patient.close()


def test_sessions_that_the_server_ends(remote: IndexDatabase, postgres: PostgresServer, postgres_index: str) -> None:
    """A restart, or an administrator: whoever had a connection in its pool does not notice."""
    register(remote, SOURCES, now=NOON)
    for _ in range(3):
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            database=postgres_index,
        )
        assert live_blocks(remote).blocks == tuple(SOURCES)
    claim(remote, job="job", token=1, sources=IDS, now=NOON)
    check(remote)


NURSERY = """
import os, random, sys
from compaction.errors import CompactionError
from compaction.blocks.index.claims import claim, high_water, open_jobs, retire
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.index.queued import read_queue
from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.registering import BlockReplacement, replace
from support.blocks.block_stores import NOON, output_of

def compact(url, seed):
    choose = random.Random(seed)
    index = IndexDatabase.open(url)
    while len(blocks := {block.id: block for block in live_blocks(index).blocks}) > 3:
        waiting = [entry for entry in read_queue(index).entries if entry.id in blocks]
        level = choose.choice(sorted({entry.level for entry in waiting}))
        ids = [entry.id for entry in waiting if entry.level == level][: choose.randint(2, 3)]
        job = "job-" + ids[0]
        try:
            token = high_water(index, job) + 1
            claimed = claim(index, job=job, token=token, sources=ids, now=NOON)
            output = output_of(choose.randrange(10**6, 10**9), list(claimed.sources))
            replace(index, BlockReplacement(job, token, tuple(sorted(ids)), (output,), "{}"), clock=lambda: NOON)
        except CompactionError:
            for stuck in open_jobs(index):
                if choose.random() < 0.3:
                    retire(index, stuck.job, now=NOON)

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        compact(sys.argv[1], int(line))
        os._exit(0)
    print(child, flush=True)
"""
"""Imports once and forks compactors: coordinator and worker in one, without manners: each takes what others hold, and
gives up what others do. Children are not waited for, so their numbers stay theirs until the end.
"""


def test_compactors_that_are_killed(index_url: str) -> None:
    """Processes are killed again and again wherever they are; every row is there at every moment, and once."""
    database = IndexDatabase.open(index_url)
    register(database, blocks_of(*range(120)), now=NOON)
    whole = reduce(add, (block.fingerprint for block in live_blocks(database).blocks), RowFingerprint())

    def rows_are_all_there() -> int:
        blocks = live_blocks(database).blocks
        assert reduce(add, (block.fingerprint for block in blocks), RowFingerprint()) == whole
        return len(blocks)

    with subprocess.Popen(
        [sys.executable, "-c", NURSERY, index_url],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nursery:
        assert nursery.stdout is not None
        assert nursery.stdin is not None
        assert nursery.stdout.readline() == "ready\n"
        alive: list[int] = []
        for seed in range(10):
            nursery.stdin.write(f"{seed}\n")
            nursery.stdin.flush()
            alive.append(int(nursery.stdout.readline()))
            if len(alive) < 3:
                continue
            before = rows_are_all_there()
            while before > 10 and rows_are_all_there() == before:
                pass
            os.kill(alive.pop(seed % 3), signal.SIGKILL)
        for process in alive:
            os.kill(process, signal.SIGKILL)
    assert rows_are_all_there() < 120
    check(database)
    for job in open_jobs(database):
        assert job.token == high_water(database, job.job)
    database.close()


def test_an_index_that_cannot_be_read_is_an_error_and_not_empty(tmp_path: Path) -> None:
    """The difference decides whether everything is an orphan."""
    database = IndexDatabase.open(f"sqlite:///{tmp_path}/index.db")
    with pytest.raises(DatabaseError):
        live_blocks(database)
    database.close()
