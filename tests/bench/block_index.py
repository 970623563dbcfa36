"""The index of a block store on SQLite and on PostgreSQL: blocks registered, the queue read, results committed.

There is no rival: the figures say how many writers and workers one index carries. CPU seconds are those of this
process; a PostgreSQL server has its own, which the wall seconds contain. SQLite waits for the disk at each commit, as
in use; the PostgreSQL that is started here does not (fsync is off), so its commits are faster than in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from bench.harness import Fact, Sample, Workspace, sample
from compaction.blocks.index.claims import claim
from compaction.blocks.index.queued import read_changes, read_queue
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.model import Block
from compaction.blocks.store import ensure_schema
from support.blocks.block_stores import NOON, a_block, output_of
from tools.servers.postgres import start_postgres

AT_ONCE = 1000
FAN_IN = 20
"""Blocks of a job at the lowest level."""


def measure(workspace: Workspace) -> Iterator[Fact]:
    """See the module."""
    with ExitStack() as resources:
        server = resources.enter_context(start_postgres())
        urls = {
            "SQLite": f"sqlite:///{workspace.directory / 'index.db'}",
            "PostgreSQL": server.url(server.create()),
        }
        for name, url in urls.items():
            database = IndexDatabase.open(url)
            resources.callback(database.close)
            ensure_schema(database, identity="bench")
            for fact in _of(database, workspace):
                yield Fact(f"{name}: {fact.title}", fact.value)


def _of(database: IndexDatabase, workspace: Workspace) -> Iterator[Fact]:
    count = workspace.pick(100_000, 2 * AT_ONCE)
    blocks = [a_block(number, tenant=f"tenant-{number // FAN_IN % 100:02d}") for number in range(count)]

    def fill() -> None:
        for start in range(0, count, AT_ONCE):
            register(database, blocks[start : start + AT_ONCE], now=NOON)

    yield _rate(f"register {count:,} blocks, {AT_ONCE:,} at a time", "blocks", count, fill)
    singles = [a_block(count + number) for number in range(workspace.pick(500, 20))]

    def one_by_one() -> None:
        for block in singles:
            register(database, [block], now=NOON)

    yield _rate("register one block at a time", "blocks", len(singles), one_by_one)
    waiting = count + len(singles)
    yield _rate(f"read the queue of {waiting:,} blocks", "blocks", waiting, lambda: read_queue(database))
    yield from _jobs(database, blocks, workspace.pick(500, 20))


def _jobs(database: IndexDatabase, blocks: list[Block], jobs: int) -> Iterator[Fact]:
    """Claims and commits beside the hundred thousand that wait."""
    groups = [blocks[start : start + FAN_IN] for start in range(0, jobs * FAN_IN, FAN_IN)]
    results = [
        BlockReplacement(f"job-{number}", 1, tuple(b.id for b in group), (output_of(1_000_000 + number, group),), "{}")
        for number, group in enumerate(groups)
    ]
    version = read_queue(database).version

    def claim_all() -> None:
        for result in results:
            claim(database, job=result.job, token=1, sources=result.sources, now=NOON)

    def replace_all() -> None:
        for result in results:
            replace(database, result, clock=lambda: NOON)

    yield _rate(f"claim {FAN_IN} blocks for a job", "jobs", jobs, claim_all)
    yield _rate(f"replace {FAN_IN} blocks by one", "jobs", jobs, replace_all)
    changed = jobs * (FAN_IN + 1)
    yield _rate(f"read {changed:,} changes of the queue", "blocks", changed, lambda: read_changes(database, version))


def _rate(title: str, unit: str, work: int, run: Callable[[], object]) -> Fact:
    taken: Sample = sample(run)
    return Fact(title, f"{work / taken.wall:,.0f} {unit}/s, {taken.wall:.3g} s ({taken.cpu:.3g} s CPU)")
