"""What reading blocks costs beyond reading: registration and verification on every shape of data, beside pyarrow.

Read once is pyarrow by itself: every page, its checksum, every column, one thread. Registration reads the rows of a
file that nobody knows, and finds fingerprint, order and times; verification reads an output again and hashes it. In
turn, in one process; CPU seconds. `--sizes` are megabytes of a shape's files together.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from bench.harness import Fact, Workspace
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.registration.describe import described
from compaction.storage.objects.store import open_objects
from support.blocks.block_shapes import KEY, SHAPES, Arrangement, generate

BATCH_ROWS = 1 << 16
BLOCK = "01JD0000000000000000000000"
MOST_TIMES, LEAST_SPEED = 2.0, 200.0


def measure(workspace: Workspace) -> Iterator[Fact]:
    """See the module."""
    for shape in workspace.pick(tuple(SHAPES), ("many ids", "nested")):
        for size in workspace.sizes or workspace.pick((50,), (1,)):
            inputs = workspace.directory / "inputs"
            generate(inputs, shape, Arrangement.OVERLAPPING, files=workspace.pick(4, 1), megabytes=size)
            megabytes = sum(path.stat().st_size for path in inputs.iterdir()) / 1e6
            costs = _costs(inputs, rounds=workspace.pick(5, 1))
            shutil.rmtree(inputs)
            read, registration, verification = costs
            value = f"read {read:.2f} CPU-s, registration {registration:.2f}: {registration / read:.2f} times as much"
            yield Fact(
                f"registration, {shape}, {megabytes:.0f} MB",
                value,
                f"<= {MOST_TIMES}",
                registration <= MOST_TIMES * read,
            )
            speed = megabytes / verification
            value = f"{speed:.0f} MB per CPU-s (read {megabytes / read:.0f})"
            yield Fact(f"verification, {shape}", value, f">= {LEAST_SPEED:.0f} MB per CPU-s", speed >= LEAST_SPEED)


def _costs(inputs: Path, *, rounds: int) -> list[float]:
    """CPU seconds of reading, registration and verification of all files: medians of rounds."""
    works = (_read, _register, _verify)
    found = [[_cpu(work, inputs) for work in works] for _ in range(rounds)]
    return [max(statistics.median(column), 1e-9) for column in zip(*found, strict=True)]


def _cpu(work: Callable[[Path], None], inputs: Path) -> float:
    began = time.process_time()
    for path in sorted(inputs.iterdir()):
        work(path)
    return time.process_time() - began


def _read(path: Path) -> None:
    with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
        for _ in file.iter_batches(BATCH_ROWS, use_threads=False):
            pass


def _register(path: Path) -> None:
    objects = open_objects(path.parent.as_uri())
    described(
        objects, path.name, tenant="t", shard=0, level=0, block=BLOCK, time_column="ts", sort_key=KEY, verify=True
    )


def _verify(path: Path) -> None:
    read_back(path.name, lambda: str(path))
