"""Reads of a branch before and after its compaction, beside one where the same is committed (docs/benchmarks.md).

200,000 records in ten folders, behind tombstones that lie in sealed tokens, a key in each token in turn: every reader
of the folders steps over them, and asks every token for a single record. What is timed are library calls on one
connection. Committed and compacted take turns; the branch before its compaction is too slow for that.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.harness import Fact, Sample, Workspace, in_child, sample
from compaction.staging.flows.reading import Reader
from support.staging.staging_trees import BulkRepo, deletions_of, in_steps, keys_of
from tools.servers.postgres import start_postgres

LIVE = 200_000
PREFIX = b"tables/warehouse/"
MOST_RATIO = 1.5
"""So many times as long as on a committed branch a read may take on a compacted one."""
COMMITTED, BEFORE, COMPACTED = "committed", "before", "compacted"


@dataclass(frozen=True, slots=True)
class _Case:
    """Tombstones in tokens, on one database. `kv_url`: "" for SQLite."""

    database: str
    tokens: int
    tombstones: int
    folder: Path
    kv_url: str = ""

    def __str__(self) -> str:
        return f"{self.database}, {self.tokens:,} tokens, {self.tombstones:,} tombstones"


def measure(workspace: Workspace) -> Iterator[Fact]:
    """Each case: a point read, a page of a listing, a page of folders."""
    small, large = workspace.pick((10_000, 1_000_000), (500, 2000))
    shapes = [(10, small), (100, small), (500, small), (10, large), (500, large)]
    live = workspace.pick(LIVE, 1000)
    with ExitStack() as resources:
        server = resources.enter_context(start_postgres())
        cases = [
            _Case("SQLite", tokens, tombstones, workspace.directory / f"sqlite-{number}")
            for number, (tokens, tombstones) in enumerate(workspace.pick(shapes, shapes[:2]))
        ]
        for number, (tokens, tombstones) in enumerate(workspace.pick(shapes[:3], shapes[:1])):
            folder = workspace.directory / f"postgresql-{number}"
            cases.append(_Case("PostgreSQL", tokens, tombstones, folder, server.url(server.create())))
        for case in cases:  # all in forked processes, before this one opens an object storage
            in_child(lambda case=case: _fill(case, live))  # type: ignore[misc]
        for case in cases:
            yield from _read(case, live, rounds=workspace.pick(9, 1))


def _fill(case: _Case, live: int) -> None:
    """The three branches."""
    first = max(1_000_000, case.tombstones)
    deleted = np.arange(first - case.tombstones, first)
    with BulkRepo.open(case.folder, kv_url=case.kv_url) as repo:
        repo.branch(COMMITTED, repo.tree(in_steps(np.arange(first, first + live))))
        tree = repo.tree(in_steps(np.arange(first - case.tombstones, first + live)))
        tokens = [repo.token(in_steps(deleted[at :: case.tokens], deletions_of)) for at in range(case.tokens)]
        repo.branch(BEFORE, tree, tokens)
        repo.branch(COMPACTED, tree, tokens)
        repo.compact(COMPACTED)


def _read(case: _Case, live: int, *, rounds: int) -> Iterator[Fact]:
    first = max(1_000_000, case.tombstones)
    chosen = np.sort(np.random.default_rng(1).choice(live, 100, replace=False))
    keys = keys_of(first + chosen).to_pylist()
    with BulkRepo.open(case.folder, kv_url=case.kv_url) as repo:
        reader = Reader(repo.area)

        def gets(branch: str) -> None:
            for key in keys if branch != BEFORE else keys[:10]:
                assert reader.get(branch, key) is not None

        def page(branch: str) -> None:
            assert reader.list(branch, prefix=PREFIX).entries[0].key == keys_of(np.array([first]))[0].as_py()

        def folders(branch: str) -> None:
            assert reader.list(branch, prefix=PREFIX, delimiter=b"/").entries

        for title, read in (("a record", gets), ("a page of 1,000", page), ("a page of folders", folders)):
            yield _fact(f"{case}: {title}", read, rounds, (100, 10) if read is gets else (1, 1))


def _fact(title: str, read: Callable[[str], None], rounds: int, reads: tuple[int, int]) -> Fact:
    """The two in turn, after one unmeasured read of each."""
    read(COMMITTED)
    read(COMPACTED)
    taken: dict[str, list[Sample]] = {COMMITTED: [], COMPACTED: []}
    for number in range(rounds):
        for branch in (COMMITTED, COMPACTED) if number % 2 else (COMPACTED, COMMITTED):
            taken[branch].append(sample(lambda branch=branch: read(branch)))  # type: ignore[misc]
    pairs = list(zip(taken[COMPACTED], taken[COMMITTED], strict=True))
    wall = statistics.median(compacted.wall / committed.wall for compacted, committed in pairs)
    cpu = statistics.median(compacted.cpu / committed.cpu for compacted, committed in pairs)
    before = sample(lambda: read(BEFORE)).wall / reads[1]
    committed, compacted = (statistics.median(item.wall for item in taken[branch]) / reads[0] for branch in taken)
    return Fact(
        title,
        f"committed {committed * 1000:.2f} ms, compacted {compacted * 1000:.2f} ms: {wall:.2f} of it (CPU {cpu:.2f}); "
        f"before {before * 1000:,.2f} ms: {before / compacted:,.0f} times as long",
        f"<= {MOST_RATIO} of committed, CPU",
        cpu <= MOST_RATIO,
    )
