"""The merge of blocks on every shape of data, beside DuckDB and Polars: what one CPU-second is worth, proof included.

A cell is a shape (what columns hold), an arrangement (how the files lie in time) and a size. Ours is what a job does
with registered blocks, whose fingerprints and order are known, whatever the files say: the merge, and the verification
that reads the output again; the others sort, write and prove nothing. Every run is a process of its own, one thread
each, the engines in turn, and each compresses with zstd as it does by itself. From a gigabyte on all have 512 MiB of
memory, and a rival is ended once it has taken so much of our CPU time that the target is met; from half of one on there
is one round instead of three. `--sizes` are megabytes, `--only` takes the cells whose titles hold a text ("nested,
unsorted").
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Fact, Workspace, fitted_exponent
from support.blocks.block_engines import CpuSpentError, Measured, Work, measured
from support.blocks.block_shapes import KEY, SHAPES, Arrangement, generate

ENGINES = ("proved", "duckdb", "polars")
FILES = 8
FEW_ROUNDS = 500
LARGE, MEMORY = 1000, 512 << 20
"""Megabytes from which on everybody has so many bytes of memory."""
LEAST_RATIO, MOST_EXPONENT = 1.5, 1.05


def measure(workspace: Workspace) -> Iterator[Fact]:
    """See the module."""
    sizes = workspace.sizes or workspace.pick((50, 500, 5000), (1,))
    arrangements = workspace.pick(tuple(Arrangement), (Arrangement.UNSORTED,))
    for shape in workspace.pick(tuple(SHAPES), ("many ids", "nested")):
        costs: dict[int, float] = {}
        for size in sizes:
            for arrangement in arrangements:
                title = f"{shape}, {arrangement}, {size:,} MB"
                if not workspace.wants(title):
                    continue
                inputs = workspace.directory / "inputs"
                generate(inputs, shape, arrangement, files=FILES, megabytes=size)
                order = () if arrangement is Arrangement.UNSORTED else KEY
                fact, cost = _cell(workspace, title, inputs, size, order)
                shutil.rmtree(inputs)
                shutil.rmtree(workspace.directory / "duckdb.parquet.spilled", ignore_errors=True)
                yield fact
                if arrangement is Arrangement.OVERLAPPING:
                    costs[size] = cost
        if len(costs) > 1:
            exponent = fitted_exponent(costs)
            met = exponent <= MOST_EXPONENT
            yield Fact(f"{shape}: exponent of cost over size", f"{exponent:.2f}", f"<= {MOST_EXPONENT}", met)


def _cell(workspace: Workspace, title: str, inputs: Path, size: int, order: tuple[str, ...]) -> tuple[Fact, float]:
    """The fact of one cell, and the CPU seconds of ours."""
    sources = sorted(map(str, inputs.iterdir()))
    outputs = {engine: workspace.directory / f"{engine}.parquet" for engine in ENGINES}
    memory = MEMORY if size >= LARGE else None
    found: dict[str, list[Measured]] = {engine: [] for engine in ENGINES}
    ended: dict[str, str] = {}
    for number in range(workspace.pick(3 if size < FEW_ROUNDS else 1, 1)):
        for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
            limited = memory is not None and engine != ENGINES[0]
            cpu = math.ceil(LEAST_RATIO * _cpu(found[ENGINES[0]])) if limited else None
            work = Work(sources, str(outputs[engine]), KEY, None, memory, order, cpu)
            try:
                found[engine].append(measured(engine, work))
            except MemoryError:
                ended[engine] = "the memory that it was given did not suffice"
            except CpuSpentError:
                ended[engine] = f"after {cpu} CPU-s"
    cost = _cpu(found[ENGINES[0]])
    ratios = {rival: _cpu(found[rival]) / max(cost, 1e-9) for rival in ENGINES[1:] if found[rival]}
    said = [_said(engine, found[engine], ended.get(engine), outputs[engine]) for engine in ENGINES]
    compared = ", ".join(f"{rival} {ratio:.2f}" for rival, ratio in ratios.items())
    met = all(ratio >= LEAST_RATIO for ratio in ratios.values())
    return Fact(title, f"{'; '.join(said)}; CPU beside ours: {compared}", f">= {LEAST_RATIO}", met), cost


def _cpu(samples: list[Measured]) -> float:
    return statistics.median(sample.cpu for sample in samples)


def _said(engine: str, samples: list[Measured], ended: str | None, output: Path) -> str:
    if ended is not None:
        return f"{engine}: ended, {ended}"
    peak = max(sample.peak for sample in samples) >> 20
    return f"{engine}: {_cpu(samples):.2f} CPU-s, {peak} MiB, output {output.stat().st_size / 1e6:.1f} MB"
