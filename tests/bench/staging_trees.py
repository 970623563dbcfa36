"""Changes over a committed tree (docs/benchmarks.md): cost by what they touch, and records per second of a rewrite.

A compaction without Spark and swap: tokens are read from SQLite, touched ranges are written part by part, each part is
read back and proved. Each is run in a forked process, which gives its peak memory (so this one never opens an object
storage: its threads would be missing in the fork). The rivals write all records
again, whatever was touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bench.harness import Curve, Fact, Race, Side, Workspace, answer_of_child, in_child
from compaction.staging.compaction import base_view, staged_changes
from compaction.staging.format.columns import I64, RecordColumns
from compaction.staging.format.ranges import write_ranges
from compaction.staging.rewriting.tree import WrittenTree
from compaction.staging.tree.aligning import fingerprint
from compaction.staging.tree.applying import merge_changes
from support.staging.staging_tables import read_plain, rocksdb_tables, write_plain
from support.staging.staging_trees import BulkRepo, deletions_of, in_steps, records_of

CHANGES = 10_000
BRANCH = "changed"


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """What 10,000 changes cost by size and place, and what a rewrite of everything costs per record."""
    sizes = workspace.sizes or workspace.pick((300_000, 1_000_000, 5_000_000), (2000,))
    changes = workspace.pick(CHANGES, 100)
    folders = {size: _committed(workspace.directory / str(size), size) for size in sizes}
    for shape, make in (("in one place", _clustered), ("in ten places", _in_ten), ("all over", _spread)):
        for size in sizes:
            folder = folders[size]
            _stage(folder, make(size, changes))
            taken, written = answer_of_child(lambda folder=folder: _compacted(folder))  # type: ignore[misc]
            yield Fact(
                f"{changes:,} changes {shape} of {size:,} records",
                f"{taken.cpu:.2f} s CPU, peak {taken.peak >> 20} MiB; ranges: {len(written.written)} written, "
                f"{written.reused} reused; {written.bytes_read / 1e6:,.1f} MB read",
            )

    def ours(size: int) -> Callable[[], object]:
        _stage(folders[size], _clustered(size, changes))
        return lambda: in_child(lambda: _compacted(folders[size]))

    def rival(size: int) -> Callable[[], object]:
        _stage(folders[size], _clustered(size, changes))
        return lambda: in_child(lambda: _all_again(folders[size]))

    title = f"{changes:,} changes in one place, by records below"
    yield Curve(title, "records", sizes, ours, "all ranges again", rival, sizes[:2], most_exponent=0.2, rounds=2)
    yield from _rates(workspace)


def _committed(folder: Path, size: int) -> Path:
    """A repository with a tree of so many records, made in a process of its own."""

    def make() -> None:
        with BulkRepo.open(folder) as repo:
            (folder / "tree").write_text(repo.tree(in_steps(2 * np.arange(size))))

    in_child(make)
    return folder


def _stage(folder: Path, touched: I64) -> None:
    """The branch with one sealed token: beside four touched records two are set anew, one is added, one deleted."""

    def make() -> None:
        kinds = np.arange(touched.size) % 4
        sets = np.where(kinds == 2, 2 * touched + 1, 2 * touched)[kinds != 3]
        with BulkRepo.open(folder) as repo:
            if repo.area.branches.find(BRANCH) is not None:
                repo.area.branches.remove(BRANCH)
            token = repo.token(in_steps(sets, lambda numbers: records_of(numbers, 1)))
            repo.token(in_steps(2 * touched[kinds == 3], deletions_of), token)
            repo.branch(BRANCH, (folder / "tree").read_text(), [token])

    in_child(make)


def _clustered(size: int, changes: int) -> I64:
    return size // 3 + np.arange(changes)


def _in_ten(size: int, changes: int) -> I64:
    return (np.arange(10)[:, None] * (size // 10) + np.arange(changes // 10)).ravel()


def _spread(size: int, changes: int) -> I64:
    return np.arange(changes) * (size // changes)


def _compacted(folder: Path) -> WrittenTree:
    with BulkRepo.open(folder) as repo:
        return repo.write(repo.work(BRANCH))


def _all_again(folder: Path) -> str:
    """Every record of the tree read, put under the changes and written: twice read again, as a proof does."""
    with BulkRepo.open(folder) as repo:
        area, work = repo.area, repo.work(BRANCH)
        base = base_view(area, work).metarange_id

        def shown() -> Iterator[RecordColumns]:
            merged = merge_changes(area.ranges.records(base), staged_changes(area, work), keep_equal=False)
            return (records for records, _ in merged if len(records))

        tree = area.ranges.write_metarange(write_ranges(shown(), area.ranges.sink, area.ranges.rule))
        assert fingerprint(shown()) == fingerprint(area.ranges.records(tree))
        return tree


def _rates(workspace: Workspace) -> Iterator[Race | Fact]:
    """A whole rewrite: a tenth of all records is changed, so every range is touched."""
    size = workspace.pick(300_000, 2000)
    folder = _committed(workspace.directory / "whole", size)
    _stage(folder, np.arange(0, size, 10))
    _, (paths, staged) = answer_of_child(lambda: _plain_inputs(folder))
    compact = Side("compaction, proof included", lambda: _compacted(folder))
    yield Race(
        "a tenth changed, all rewritten",
        "records",
        size,
        compact,
        Side("plain Python", lambda: _plainly(paths, staged)),
        rounds=3,
        isolated=True,
    )
    targets = [workspace.directory / f"target-{number}.sst" for number in range(len(paths))]
    with rocksdb_tables() as rocksdb:
        copying = Side(
            "RocksDB, JVM, copying alone",
            lambda: [rocksdb.copy(path, target) for path, target in zip(paths, targets, strict=True)],
        )
        yield Race("a tenth changed, all rewritten", "records", size, compact, copying, rounds=3, isolated=True)
    written = min(in_child(lambda: _merged(folder)).cpu for _ in range(workspace.pick(3, 1)))
    rate = size / written
    yield Fact("the same without the proof: read, tokens too, merged and written", f"{rate:,.0f} records/s")


def _plain_inputs(folder: Path) -> tuple[list[Path], dict[bytes, bytes]]:
    """The files of the ranges, and the changes."""
    with BulkRepo.open(folder) as repo:
        infos = repo.area.ranges.ranges((folder / "tree").read_text())
        paths = [folder / "objects" / repo.area.ranges.path(info.id) for info in infos]
        changes = staged_changes(repo.area, repo.work(BRANCH))
        return paths, dict(pair for batch in changes for pair in batch.pairs())


def _merged(folder: Path) -> None:
    """Without the proof. What the codec alone reads and writes is measured by `staging_tables`."""
    with BulkRepo.open(folder) as repo:
        area, work = repo.area, repo.work(BRANCH)
        records = area.ranges.records(base_view(area, work).metarange_id)
        merged = merge_changes(records, staged_changes(area, work), keep_equal=False)
        for _ in write_ranges((item for item, _ in merged), area.ranges.sink, area.ranges.rule):
            pass


def _plainly(paths: list[Path], staged: dict[bytes, bytes]) -> None:
    """The same by records, without a proof and without ids; a range stays a range."""
    for path in paths:
        found = {key: staged.get(key, value) for key, value in read_plain(path.read_bytes())}
        write_plain([(key, value) for key, value in found.items() if value], {})
