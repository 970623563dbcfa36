"""The merge of blocks beside engines that sort: the case of docs/benchmarks.md (40 files, 25.6 M rows, 290 MB).

Every run is a process of its own; the engines take turns, round by round, and a ratio is the median over the rounds.
CPU seconds are what to trust on a machine that others share. Verification (the output read again, through its
fingerprint) is measured beside the merge that it proves. DuckDB and Polars run with one thread, Spark SQL with two.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.harness import Fact, Sample, Workspace
from support.blocks.block_engines import Work, generate, measured

RIVALS = ("duckdb", "polars", "spark")
OURS = ("ours", "known", "verification")
"""What a round runs: verification reads the output of the merge before it."""
MEGA = 1e6
LEAST_RATIO = {"duckdb": 3, "polars": 3, "spark": 10}


def measure(workspace: Workspace) -> Iterator[Fact]:
    """See the module. `--sizes N` takes N files instead of 40."""
    files = workspace.sizes[0] if workspace.sizes else workspace.pick(40, 2)
    inputs = workspace.directory / "inputs"
    generate(inputs, files=files, rows=workspace.pick(640_000, 500))
    size = sum(path.stat().st_size for path in inputs.iterdir()) / MEGA
    yield Fact("inputs", f"{files} files, {size:,.1f} MB")
    work = Work(sorted(map(str, inputs.iterdir())), str(workspace.directory / "output.parquet"))
    engines = (*OURS, *workspace.pick(RIVALS, ("duckdb", "polars")))
    rounds: list[dict[str, Sample]] = []
    for number in range(workspace.pick(3, 1)):
        order = engines if number % 2 == 0 else (*engines[len(OURS) :], *OURS)
        rounds.append({engine: Sample(*measured(engine, work)) for engine in order})
    for engine in engines:
        yield _rate(engine, [item[engine] for item in rounds], size)
    for engine in engines[len(OURS) :]:
        ratio = statistics.median(item[engine].cpu / max(item["ours"].cpu, 1e-9) for item in rounds)
        least = LEAST_RATIO[engine]
        yield Fact(f"{engine}: CPU seconds beside the merge's", f"{ratio:.1f}x", f">= {least}x", ratio >= least)
    shares = [item["verification"].cpu / max(item["known"].cpu + item["verification"].cpu, 1e-9) for item in rounds]
    share = statistics.median(shares)
    yield Fact("verification, share of merge and verification, CPU", f"{share:.1%}", "<= 15 %", share <= 0.15)


def _rate(engine: str, samples: list[Sample], size: float) -> Fact:
    cpu, wall = (statistics.median(getattr(sample, name) for sample in samples) for name in ("cpu", "wall"))
    rate = size / max(cpu, 1e-9)
    text = (
        f"{rate:.1f} MB per CPU-second, {size / wall:.1f} MB/s, peak {max(sample.peak for sample in samples) >> 20} MiB"
    )
    return Fact(engine, text, *((">= 40 MB per CPU-second", rate >= 40) if engine == "known" else ()))
