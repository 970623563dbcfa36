"""Build step: an archive of the classes that Spark loads, for the JVMs of this image (rewrite/class_archive.py).

    archive.py FILE

It is valid for the very Java runtime, jars and class path of the image, so it is made inside, after both are in place.
Every class that a start and a Python task load is in it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext

OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -XX:ArchiveClassesAtExit={file} -Xlog:cds=off "
    "-Xlog:cds+dynamic=off"
)


def main(file: Path) -> None:
    """Start, work, stop; the JVM writes the archive as it ends."""
    conf = SparkConf(loadDefaults=False).setMaster("local[2]").setAppName("archive")
    conf.set("spark.ui.enabled", "false").set("spark.driver.memory", "512m")
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    conf.set("spark.driver.extraJavaOptions", OPTIONS.format(file=file))
    context = SparkContext(conf=conf)
    gateway = context._gateway
    assert context.parallelize(range(8), 2).map(lambda number: number * 2).sum() == 56
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(300)
    except subprocess.TimeoutExpired:
        sys.exit("error: Spark did not end")
    if not file.is_file():
        sys.exit(f"error: the JVM wrote no archive to {file}")
    print(f"{file}: {file.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
