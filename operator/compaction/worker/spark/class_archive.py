"""An archive of the classes that Spark loads at its start: the JVM maps them instead of parsing and verifying each.

(Class-data sharing, JEP 350: `-XX:ArchiveClassesAtExit` writes it, `-XX:SharedArchiveFile` uses it.) It saves about
30 % of the CPU time of a start; docs/benchmarks.md has the figures. Making one costs twice a start, once per machine
and version, so it is made at set-up and never by a worker.

An archive is never a reason for failure: without one, or with one that the JVM does not accept (it checks the class
path and its own version), Spark starts as it always did.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Final

from compaction.worker.spark.java import Java

_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
WRITING_SECONDS: Final = 300.0
"""How long the JVM may take to write one at its end (10 s here)."""


ARCHIVE_VARIABLE: Final = "COMPACTION_CLASS_ARCHIVE"
"""Names an archive made together with the Java runtime and the jars it belongs to, as in the worker image."""


def archive_path(directory: Path, java: Java) -> Path:
    """Where the archive of this Java, this PySpark and this installation of it belongs."""
    spec = importlib.util.find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec is not None and spec.origin else Path()
    # The JVM refuses an archive when a jar is another, or is as old as another: then this name is a new one.
    stamp = jars.stat().st_mtime_ns if jars.is_dir() else 0
    release = java.home / "release"
    runtime = release.read_text(errors="replace") if release.is_file() else ""
    versions = f"{java.home}|{java.version}|{runtime}|{importlib.metadata.version('pyspark')}|{jars}|{stamp}"
    return directory / f"spark-{hashlib.sha256(versions.encode()).hexdigest()[:16]}.jsa"


def options_to_use(directory: Path | None, java: Java) -> str:
    """JVM options for a start with the archive: the one the environment names, else ours; empty when there is none."""
    if os.environ.get(ARCHIVE_VARIABLE):
        archive = Path(os.environ[ARCHIVE_VARIABLE])
    elif directory is not None:
        archive = archive_path(directory, java)
    else:
        return ""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if os.access(archive, os.R_OK) else ""


def options_to_write(archive: Path) -> str:
    """JVM options for a start at whose end the archive is written."""
    return f"-XX:ArchiveClassesAtExit={archive} {_QUIET}"
