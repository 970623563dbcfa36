"""One job on several task slots: speed-up, balance of its key ranges, and the smallest job that is worth splitting.

The whole way of a worker's attempt: footers, parts by ranges of keys, one Spark task each, proof, commit in the index
(SQLite; objects in a folder). Wall seconds, since that is what slots are for; Spark is up before. Large jobs are split
as they are by default; small ones into as many parts as there are slots, beside the same job in one part. `executors`
are JVMs of their own, as they are in pods, here on one machine (local-cluster). `--sizes` are megabytes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Fact, Workspace
from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.model import block_path
from compaction.blocks.rewriting.report import PART_BYTES
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.local.processes.process import class_archives
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings
from support.blocks.block_shapes import Arrangement, generate
from support.blocks.block_stores import block_id
from support.blocks.blocks import claim, job_of, run

SHAPE = "few labels"
FILES = 16
MEMORY = 512 << 20
ONE, TWO, FOUR, EXECUTORS = "local[1]", "local[2]", "local[4]", "local-cluster[2,1,2048]"
NAMES = {ONE: "one slot", TWO: "two slots", FOUR: "four slots", EXECUTORS: "two executors"}
WORTH = 1.1
"""To be worth it, the parts together must be done so much earlier than the whole."""


@dataclass(frozen=True)
class Store:
    """Registered blocks, and the index as it was before any job."""

    directory: Path
    ids: tuple[str, ...]
    bytes: int

    def attempt(self, engine: SparkEngine, *, part_bytes: int) -> tuple[float, list[int]]:
        """Seconds of a job over all blocks, and the rows of its outputs."""
        index = self.directory / "run.db"
        shutil.copyfile(self.directory / "index.db", index)
        connection = BlockStoreConnection(f"file://{self.directory}/objects", f"sqlite:///{index}")
        job = job_of(connection, self.ids, part_bytes=part_bytes, memory_bytes=MEMORY, sort_key=("ts",))
        store = BlockStore.open(connection)
        try:
            claim(store, job, 1)
            began = time.perf_counter()
            report = run(connection, job, engine)
            seconds = time.perf_counter() - began
            assert report.outcome is ReportOutcome.SUCCEEDED, report.message
            outputs = [block for block in store.live().blocks if block.level == 1]
            for block in outputs:
                (self.directory / "objects" / block.path).unlink()
            return seconds, [block.rows for block in outputs]
        finally:
            store.close()


def registered(directory: Path, megabytes: int) -> Store:
    """Blocks that overlap, in a folder, with an index of their own."""
    generate(directory / "files", SHAPE, Arrangement.OVERLAPPING, files=FILES, megabytes=megabytes)
    paths = []
    for number, file in enumerate(sorted((directory / "files").iterdir())):
        paths.append(block_path("acme", 0, block_id(number)))
        target = directory / "objects" / paths[-1]
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    store = BlockStore.open(BlockStoreConnection(f"file://{directory}/objects", f"sqlite:///{directory}/index.db"))
    ids = store.register(paths, tenant="acme", shard=0).new
    size = sum(block.bytes for block in store.live().blocks)
    store.close()
    return Store(directory, ids, size)


def measure(workspace: Workspace) -> Iterator[Fact]:
    """See the module."""
    masters = workspace.pick((ONE, TWO, FOUR, EXECUTORS), (TWO,))
    cores = os.cpu_count()
    (large,) = workspace.sizes or workspace.pick((5000,), (2,))
    store = registered(workspace.directory / "large", large)
    part_bytes = workspace.pick(PART_BYTES, store.bytes // 2 + 1)
    first, smallest = 0.0, list[Fact]()
    for master in masters:
        with _engine(workspace, master) as engine:
            seconds, rows = store.attempt(engine, part_bytes=part_bytes)
            if master == TWO:
                smallest = list(_smallest(workspace, engine))
        first = first or seconds
        balance = max(rows) / statistics.mean(rows)
        told = f"{seconds:.1f} s, {first / seconds:.2f} times as fast as {NAMES[masters[0]]}"
        parts = f"{len(rows)} parts, the largest {balance:.2f} of the mean"
        yield Fact(f"{store.bytes / 1e6:,.0f} MB on {NAMES[master]}, {cores} cores", f"{told}; {parts}")
    shutil.rmtree(store.directory)
    yield from smallest


def _smallest(workspace: Workspace, engine: SparkEngine) -> Iterator[Fact]:
    worth: list[int] = []
    for size in workspace.pick((2, 8, 32, 128), (1,)):
        store = registered(workspace.directory / f"{size}", size)
        rounds = [
            [store.attempt(engine, part_bytes=bound)[0] for bound in (store.bytes, store.bytes // 2 + 1)]
            for _ in range(workspace.pick(5, 1))
        ]
        shutil.rmtree(store.directory)
        whole, split = (statistics.median(column) for column in zip(*rounds, strict=True))
        if whole >= WORTH * split:
            worth.append(size)
        yield Fact(f"{size} MB in two parts on two slots", f"{split:.2f} s, in one part {whole:.2f} s")
    least = f"{min(worth)} MB" if worth else "none of these"
    yield Fact("smallest job worth splitting", f"{least} (done {WORTH} times as fast)")


def _engine(workspace: Workspace, master: str) -> SparkEngine:
    scratch = workspace.directory / "spark"
    scratch.mkdir(exist_ok=True)
    log_file = scratch / "spark.log"
    return SparkEngine(
        SparkSettings(master=master, scratch_parent=scratch, log_file=log_file, archives=class_archives())
    )
