"""Settings of a Spark application of ours, the Java runtime, and the archive of classes that it starts from."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from compaction.worker.errors import JavaError

# Finds the Java runtime that Spark runs on: JAVA_HOME, then PATH; version 17 or later.
#
# Alternatives that were tried: docs/design/local-control-plane.md#java.

MINIMUM = 17
_HELP = (
    "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk) "
    "or set JAVA_HOME to one"
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home directory and major version."""

    home: Path
    version: int


def find_java() -> Java:
    """The runtime Spark will use.

    Raises:
        JavaError: none was found, or the one found is too old; says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not os.access(executable, os.X_OK):
            raise JavaError(f"JAVA_HOME is {home}, but {executable} is no program: {_HELP}")
    else:
        on_path = shutil.which("java")
        if on_path is None:
            raise JavaError(f"Spark needs Java {MINIMUM} or later, and there is no java on PATH: {_HELP}")
        executable = Path(on_path).resolve()
    version = _version_of(executable)
    if version < MINIMUM:
        raise JavaError(f"{executable} is Java {version}, Spark needs {MINIMUM} or later: {_HELP}")
    return Java(home=executable.parent.parent, version=version)


def _version_of(executable: Path) -> int:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{executable} cannot be run: {error}") from error
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        raise JavaError(f"{executable} -version gives no version: {(answer.stderr or answer.stdout).strip()[:200]}")
    major = int(match[1])
    # "1.8.0" was the way to write 8 until Java 9.
    return int(match[2] or 0) if major == 1 else major


# An archive of the classes that Spark loads at its start: the JVM maps them instead of parsing and verifying each.
#
# (Class-data sharing, JEP 350: `-XX:ArchiveClassesAtExit` writes it, `-XX:SharedArchiveFile` uses it.) It saves about
# 30 % of the CPU time of a start; docs/benchmarks.md has the figures. Making one costs twice a start, once per
# machine and version, so it is made at set-up and never by a worker.
#
# An archive is never a reason for failure: without one, or with one that the JVM does not accept (it checks the class
# path and its own version), Spark starts as it always did.

_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
WRITING_SECONDS: Final = 300.0
"""How long the JVM may take to write one at its end (10 s here)."""


ARCHIVE_VARIABLE: Final = "COMPACTION_CLASS_ARCHIVE"
"""Names an archive made together with the Java runtime and the jars it belongs to, as in the worker image."""


def archive_path(directory: Path, java: Java) -> Path:
    """Return the path at which the archive of this Java, this PySpark and this installation of it belongs."""
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


# The configuration of a Spark application of ours: few settings, because data never passes through the JVM.

PYTHON_ENVIRONMENT: Final[Mapping[str, str]] = {
    # Arrow's allocator takes pages of 2 MiB and gives them back moments later: clearing them costs up to a fifth of a
    # merge (docs/adr/0261). It reads this once, when the process begins.
    "MIMALLOC_ALLOW_THP": "0",
}
"""Environment of Spark's Python workers, wherever they run."""
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.python.worker.reuse": "true",
    "spark.python.task.killTimeout": "500ms",
    # Two copies of one task would write the same partial file.
    "spark.speculation": "false",
    **{f"spark.executorEnv.{name}": value for name, value in PYTHON_ENVIRONMENT.items()},
}
_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir={scratch}"
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p spark %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
"""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of the session to start: master URL, extra configuration (wins over ours, except what a local master
    needs to stay local), and how many jobs will run at a time. `log_file`: where the JVM's output goes; None = to our
    own standard error. `archives`: directory of class archives (class_archive.py). `stop_seconds`: how long the JVM may
    take to end.
    """

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    app_name: str = "compactor"
    jobs: int = 1
    scratch_parent: Path | None = None
    log_file: Path | None = None
    archives: Path | None = None
    stop_seconds: float = 10.0

    @property
    def is_local(self) -> bool:
        """True when driver and executors are one JVM on this machine."""
        return self.master == "local" or self.master.startswith("local[")


def spark_conf(settings: SparkSettings, scratch: Path, java: Java) -> Any:
    """The `SparkConf`: our defaults, then the settings' own, then what keeps a local master local."""
    from pyspark import SparkConf

    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    merged = {**_DEFAULTS, **settings.conf}
    java_options = [
        f"-Dlog4j2.configurationFile=file:{log4j}",
        _JAVA_OPTIONS.format(scratch=scratch),
        options_to_use(settings.archives, java),
        merged.get("spark.driver.extraJavaOptions", ""),
    ]
    merged["spark.driver.extraJavaOptions"] = " ".join(filter(None, java_options))
    merged.setdefault("spark.local.dir", str(scratch))
    merged.setdefault("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    if settings.is_local:
        merged |= _LOCAL
    conf = SparkConf(loadDefaults=False).setMaster(settings.master).setAppName(settings.app_name)
    return conf.setAll(list(merged.items()))
