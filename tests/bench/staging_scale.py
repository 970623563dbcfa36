"""A branch with a fifth as many staged changes as records is compacted (docs/benchmarks.md): time and memory by size.

Without Spark: a driver and one executor in one process, tasks one after the other. The changes lie all over the tree,
in four sealed tokens on SQLite; of four of them two set a record anew, one adds one and one deletes one. There is no
rival: the question is what grows with the size. `--sizes 2000000,10000000,50000000` takes other trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.harness import Fact, Sample, Workspace, answer_of_child, fitted_exponent, in_child
from compaction.staging.compaction import staged_changes
from support.staging.staging_trees import BulkRepo, deletions_of, in_steps, records_of

BRANCH = "changed"
TOKENS = 4
SHARE = 5
"""One in so many records is changed."""
MOST_MEMORY = 1 << 30
"""Of driver and executor together."""
MOST_EXPONENT = 1.05


@dataclass(frozen=True, slots=True)
class _Taken:
    """A compaction of one size."""

    changes: int
    ranges: int
    whole: Sample
    tokens: Sample


def measure(workspace: Workspace) -> Iterator[Fact]:
    """Each size, then how cost grows."""
    sizes = workspace.sizes or workspace.pick((500_000, 1_500_000, 5_000_000), (2000, 4000))
    taken: dict[int, _Taken] = {}
    for size in sizes:
        taken[size] = one = _taken(workspace.directory / str(size), size)
        name = f"{one.changes:,} changes over {size:,} records"
        peak = one.whole.peak
        yield Fact(
            f"{name}: compaction with its proof",
            f"{one.whole.cpu:.1f} s CPU, {size / one.whole.cpu:,.0f} records/s; {one.ranges:,} ranges written",
        )
        rate = one.changes / one.tokens.cpu
        yield Fact("... tokens read and merged", f"{rate:,.0f} changes/s, {one.tokens.cpu:.1f} s CPU")
        yield Fact("... peak memory", f"{peak >> 20} MiB", f"<= {MOST_MEMORY >> 20} MiB", peak <= MOST_MEMORY)
    seconds = fitted_exponent({size: item.whole.cpu for size, item in taken.items()})
    memory = fitted_exponent({size: item.whole.peak for size, item in taken.items()})
    yield Fact("fitted exponent: CPU seconds", f"{seconds:.2f}", f"<= {MOST_EXPONENT}", seconds <= MOST_EXPONENT)
    yield Fact("fitted exponent: peak memory", f"{memory:.2f}")


def _taken(folder: Path, size: int) -> _Taken:
    _, changes = answer_of_child(lambda: _branch(folder, size))
    tokens = in_child(lambda: _tokens(folder))
    whole, ranges = answer_of_child(lambda: _compacted(folder))
    return _Taken(changes, ranges, whole, tokens)


def _branch(folder: Path, size: int) -> int:
    """Tree and tokens; how many changes are staged."""
    numbers = np.arange(size)
    touched = numbers[numbers * 2_654_435_761 % 1_000_003 % SHARE == 0]
    kinds = np.arange(touched.size) % 4
    sets = np.where(kinds == 2, 2 * touched + 1, 2 * touched)
    with BulkRepo.open(folder) as repo:
        tree = repo.tree(in_steps(2 * numbers))
        tokens = []
        for token in range(TOKENS):
            mine = np.arange(touched.size) // 4 % TOKENS == token
            name = repo.token(in_steps(sets[mine & (kinds != 3)], lambda some: records_of(some, 1)))
            tokens.append(repo.token(in_steps(sets[mine & (kinds == 3)], deletions_of), name))
        repo.branch(BRANCH, tree, tokens)
    return int(touched.size)


def _tokens(folder: Path) -> None:
    with BulkRepo.open(folder) as repo:
        for _ in staged_changes(repo.area, repo.work(BRANCH)):
            pass


def _compacted(folder: Path) -> int:
    with BulkRepo.open(folder) as repo:
        return len(repo.compact(BRANCH).written)
