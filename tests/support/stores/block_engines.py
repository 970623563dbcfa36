"""Ways to make one sorted Parquet file of many, each a process of its own: `python -m support.stores.block_engines`.

What is measured is the work: not the start of Python, nor of Spark's JVM (whose CPU time in the work is counted).
"""

from __future__ import annotations

import glob
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

KEY = ("service", "timestamp")
STRINGS = ("service", "pod", "type", "function")
LEVEL = 3
"""Of zstd, for everybody: that of the inputs."""


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


def ours(sources: list[str], output: str) -> Callable[[], object]:
    """The merge, the rows of the inputs hashed on the way."""
    from compaction.stores.blocks.merge.kernel import merge
    from compaction.stores.blocks.merge.settings import MergeInput, MergeSettings

    inputs = [MergeInput(name=path, open=lambda path=path: path) for path in sources]  # type: ignore[misc]
    return lambda: merge(inputs, output, MergeSettings(sort_key=KEY, compression_level=LEVEL))


def known(sources: list[str], output: str) -> Callable[[], object]:
    """The merge of blocks whose fingerprints are registered, as outputs of a compaction are."""
    from compaction.stores.blocks.merge.kernel import merge
    from compaction.stores.blocks.merge.settings import MergeInput, MergeSettings
    from compaction.stores.blocks.model import Fingerprint

    inputs = [MergeInput(name=path, open=lambda path=path: path, fingerprint=Fingerprint()) for path in sources]  # type: ignore[misc]
    return lambda: merge(inputs, output, MergeSettings(sort_key=KEY, compression_level=LEVEL))


def verification(sources: list[str], output: str) -> Callable[[], object]:
    """The output read again and hashed."""
    from compaction.stores.blocks.verify import read_back

    return lambda: read_back(output, lambda: output)


def duckdb(sources: list[str], output: str) -> Callable[[], object]:
    """COPY ... ORDER BY, one thread."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    query = (
        f"COPY (SELECT * FROM read_parquet({sources!r}) ORDER BY {', '.join(KEY)}) "
        f"TO '{output}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {LEVEL})"
    )
    return lambda: connection.execute(query)


def polars(sources: list[str], output: str) -> Callable[[], object]:
    """Scan, sort, sink."""
    import polars

    scan = polars.scan_parquet(sources).sort(*KEY, maintain_order=True)
    return lambda: scan.sink_parquet(output, compression="zstd", compression_level=LEVEL)


def spark(sources: list[str], output: str) -> Callable[[], object]:
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
    frame = session.read.parquet(*sources)
    return lambda: (
        frame.coalesce(1)
        .sortWithinPartitions(*KEY)
        .write.option("compression", "zstd")
        .mode("overwrite")
        .parquet(output + ".spark")
    )


ENGINES = {one.__name__: one for one in (ours, known, verification, duckdb, polars, spark)}


def cpu_and_peak() -> tuple[float, int]:
    """CPU seconds of this process and those below it, and the largest resident set of one."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        cpu, peak = cpu + times.user + times.system, max(peak, child.memory_info().rss)
    return cpu, peak


def main(engine: str, directory: str, output: str) -> None:
    """Prints {wall, cpu, peak} as JSON."""
    run = ENGINES[engine](sorted(glob.glob(f"{directory}/*.parquet")), output)
    before, began = cpu_and_peak()[0], time.perf_counter()
    run()
    wall = time.perf_counter() - began
    cpu, peak = cpu_and_peak()
    print(json.dumps({"wall": wall, "cpu": cpu - before, "peak": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
