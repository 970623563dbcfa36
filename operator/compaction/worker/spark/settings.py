"""How a Spark application of ours is configured: few settings, because data never passes through the JVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from compaction.worker.spark.class_archive import options_to_use
from compaction.worker.spark.java import Java

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
    """What to start: master URL, extra configuration (wins over ours, except what a local master needs to stay local),
    and how many jobs will run at a time. `log_file`: where the JVM's output goes; None = to our own standard error.
    `archives`: directory of class archives (class_archive.py). `stop_seconds`: how long the JVM may take to end.
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
