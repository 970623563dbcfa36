"""Ways to make one sorted Parquet file of many, each a process of its own: `python -m support.blocks.block_engines`.

What is measured is the work: not the start of Python, nor of Spark's JVM (whose CPU time in the work is counted).
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from compaction.worker.spark.settings import PYTHON_ENVIRONMENT

TESTS = Path(__file__).resolve().parents[2]
KEY = ("service", "timestamp")
STRINGS = ("service", "pod", "type", "function")
LEVEL = 3
"""Of zstd, for everybody: that of the inputs."""
OUT_OF_MEMORY = 3
"""Exit status of an engine that says itself that its memory does not suffice."""
SPILLED = 24 << 30
"""Bytes that an engine with a limit may spill: more is five times the largest inputs."""
OVERHEAD, LOOK_SECONDS = 512 << 20, 0.1
"""Bytes that a process may take besides the memory that it is given: code, allocators, what is mapped."""


def generate(directory: Path, *, files: int, rows: int) -> None:
    """Files as collectors flush them: each sorted by KEY, all over the same hour, strings that repeat."""
    names = {
        "service": [f"service-{n * 2654435761 % 2**32:08x}" for n in range(200)],
        "pod": [f"pod/namespace/production-{n * 2654435761 % 2**32:08x}" for n in range(2000)],
        "type": [f"type-{n}" for n in range(12)],
        "function": [f"github.com/example/project/pkg/function-{n * 2654435761 % 2**32:08x}" for n in range(5000)],
    }
    place = np.argsort(np.argsort(names["service"]))
    directory.mkdir()
    for file in range(files):
        random = np.random.default_rng(file)
        service = random.zipf(1.3, rows) % 200
        when = 1_700_000_000_000_000 + random.integers(0, 3_600_000, rows) * 1000
        order = np.lexsort((when, place[service]))
        service, when = service[order], when[order]
        codes = {
            "service": service,
            "pod": (service * 10 + random.integers(0, 10, rows)) % 2000,
            "type": random.integers(0, 12, rows),
            "function": (random.zipf(1.2, rows) * 17 + service) % 5000,
        }
        columns = {name: pa.array(names[name]).take(pa.array(codes[name])) for name in STRINGS}
        columns["timestamp"] = pa.array(when).cast(pa.timestamp("us", "UTC"))
        columns["value"] = pa.array(random.lognormal(9, 2, rows).astype("i8"))
        table = pa.table(columns).select(["service", "timestamp", "pod", "type", "function", "value"])
        pq.write_table(
            table,
            directory / f"{file:03d}.parquet",
            compression="zstd",
            compression_level=LEVEL,
            row_group_size=1 << 17,
            sorting_columns=pq.SortingColumn.from_ordering(table.schema, [(name, "ascending") for name in KEY]),
        )


class CpuSpentError(Exception):
    """An engine took all the CPU time that it was given."""


class Measured(NamedTuple):
    """Seconds of wall and CPU time of the work, and the largest resident set of the process in bytes."""

    wall: float
    cpu: float
    peak: int


@dataclass(frozen=True, slots=True)
class Work:
    """Files to be made one, sorted by `key`. `level`: of zstd, None is what the engine has by itself. `memory`: bytes
    that it may hold, None likewise. `order`: of the files, as registration has found it; None: what they say. `cpu`:
    seconds of CPU time after which it is ended; None: never.
    """

    sources: list[str]
    output: str
    key: tuple[str, ...] = KEY
    level: int | None = LEVEL
    memory: int | None = None
    order: tuple[str, ...] | None = None
    cpu: int | None = None


def _merging(work: Work, *, known: bool) -> Callable[[], object]:
    from compaction.blocks.merge.footers import MergeInput, MergeSettings
    from compaction.blocks.merge.kernel import merge
    from compaction.blocks.model import RowFingerprint

    fingerprint = RowFingerprint() if known else None
    inputs = [
        MergeInput(name=path, open=lambda path=path: path, fingerprint=fingerprint, sort_key=work.order)  # type: ignore[misc]
        for path in work.sources
    ]
    settings = MergeSettings(sort_key=work.key)
    if work.level is not None:
        settings = replace(settings, compression_level=work.level)
    if work.memory is not None:
        settings = replace(settings, memory_bytes=work.memory)
    return lambda: merge(inputs, work.output, settings)


def ours(work: Work) -> Callable[[], object]:
    """The merge, the rows of the inputs hashed on the way."""
    return _merging(work, known=False)


def known(work: Work) -> Callable[[], object]:
    """The merge of blocks whose fingerprints are registered, as outputs of a compaction are."""
    return _merging(work, known=True)


def verification(work: Work) -> Callable[[], object]:
    """The output read again and hashed."""
    from compaction.blocks.fingerprint.proof import read_back

    return lambda: read_back(work.output, lambda: work.output)


def proved(work: Work) -> Callable[[], object]:
    """What a job does: the merge of blocks whose fingerprints are registered, and then the verification."""
    steps = known(work), verification(work)
    return lambda: [step() for step in steps]


def duckdb(work: Work) -> Callable[[], object]:
    """COPY ... ORDER BY, one thread."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    if work.memory is not None:
        connection.execute(f"SET memory_limit = '{work.memory}B'")
        connection.execute(f"SET temp_directory = '{work.output}.spilled'")
        connection.execute(f"SET max_temp_directory_size = '{SPILLED}B'")
    level = "" if work.level is None else f", COMPRESSION_LEVEL {work.level}"
    query = (
        f"COPY (SELECT * FROM read_parquet({work.sources!r}) ORDER BY {', '.join(work.key)}) "
        f"TO '{work.output}' (FORMAT parquet, COMPRESSION zstd{level})"
    )

    def run() -> object:
        try:
            return connection.execute(query)
        except duckdb.OutOfMemoryException as error:
            raise MemoryError("duckdb") from error

    return run


def polars(work: Work) -> Callable[[], object]:
    """Scan, sort, sink."""
    import polars

    scan = polars.scan_parquet(work.sources).sort(*work.key, maintain_order=True)
    return lambda: scan.sink_parquet(work.output, compression="zstd", compression_level=work.level)


def spark(work: Work) -> Callable[[], object]:
    """Read, orderBy, write one file; two threads."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.range(1).count()
    frame = session.read.parquet(*work.sources)
    return lambda: (
        frame.coalesce(1)
        .sortWithinPartitions(*work.key)
        .write.option("compression", "zstd")
        .mode("overwrite")
        .parquet(work.output + ".spark")
    )


ENGINES = {item.__name__: item for item in (ours, known, verification, proved, duckdb, polars, spark)}


def largest_resident() -> int:
    """Bytes. Not `ru_maxrss`: after a fork that one begins with what the parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def cpu_and_peak() -> tuple[float, int]:
    """CPU seconds of this process and those below it, and the largest resident set of one."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, peak = used.ru_utime + used.ru_stime, largest_resident()
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        cpu, peak = cpu + times.user + times.system, max(peak, child.memory_info().rss)
    return cpu, peak


def main(engine: str, said: str) -> None:
    """Prints {wall, cpu, peak} as JSON; `said`: the `Work`, as JSON."""
    work = json.loads(said)
    order = None if work["order"] is None else tuple(work["order"])
    run = ENGINES[engine](Work(**work | {"key": tuple(work["key"]), "order": order}))
    before, began = cpu_and_peak()[0], time.perf_counter()
    if work["cpu"] is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(before + work["cpu"]), resource.RLIM_INFINITY))
    try:
        run()
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    wall = time.perf_counter() - began
    cpu, peak = cpu_and_peak()
    print(json.dumps({"wall": wall, "cpu": cpu - before, "peak": peak}))


def measured(engine: str, work: Work) -> Measured:
    """One run, in a process of its own.

    Raises:
        MemoryError: its memory does not suffice: it says so, or it takes more by OVERHEAD and is ended then.
        CpuSpentError: it was ended after the CPU time that it is given.
    """
    command = [sys.executable, "-m", "support.blocks.block_engines", engine, json.dumps(asdict(work))]
    environment = {**os.environ, **PYTHON_ENVIRONMENT, "PYTHONPATH": str(TESTS), "POLARS_MAX_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        seen = psutil.Process(process.pid)
        while work.memory is not None and process.poll() is None:
            if seen.memory_info().rss > work.memory + OVERHEAD:
                process.kill()
                raise MemoryError(engine)
            time.sleep(LOOK_SECONDS)
        answer, _ = process.communicate()
    if process.returncode == OUT_OF_MEMORY:
        raise MemoryError(engine)
    if process.returncode == -signal.SIGXCPU:
        raise CpuSpentError(engine)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Measured(**json.loads(answer.splitlines()[-1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
