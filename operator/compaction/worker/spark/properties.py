"""A SparkApplication's driver without spark-submit: its properties file and arguments as options of `compactor worker`.

An operator of SparkApplications submits in cluster mode: the driver's container gets `driver --properties-file FILE
--class ... MAIN ARGUMENTS`, and Spark's own image starts a JVM that starts Python. Here Python comes first, as in a
driver pod made by this operator, because it must outlive the JVM: it renews leases, stops before a commit when it is
asked to end, and its exit code is the container's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import javaproperties

from compaction.worker.errors import EngineStartError

MAIN_FILE: Final = "/opt/compaction/worker.py"
_OURS: Final = frozenset({"spark.master", "spark.app.name", "spark.submit.deployMode", "spark.submit.pyFiles"})


@dataclass(frozen=True, slots=True)
class DriverCall:
    """The call of a driver's container: where its properties are, and the arguments of the main file."""

    properties: tuple[Path, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> DriverCall:
        """Words before the main file are options of spark-submit, those after it are the main file's own.

        Raises:
            EngineStartError: there is no main file of ours among them.
        """
        files: list[Path] = []
        conf: dict[str, str] = {}
        remaining = iter(words)
        for word in remaining:
            if word.endswith(MAIN_FILE):
                return cls(tuple(files), conf, tuple(remaining))
            if word == "--properties-file":
                files.append(Path(next(remaining, "")))
            elif word == "--conf":
                key, _, value = next(remaining, "").partition("=")
                conf[key] = value
            elif word.startswith("--"):
                next(remaining, "")  # each of them takes a value: --class, --deploy-mode, --proxy-user
        raise EngineStartError(f"the driver's arguments name no main file that ends in {MAIN_FILE}: {' '.join(words)}")


def worker_options(call: DriverCall, environment: Mapping[str, str]) -> list[str]:
    """The arguments of `compactor worker`: master and settings from the properties, then the main file's, which win.

    Raises:
        EngineStartError: a properties file cannot be read.
    """
    settings: dict[str, str] = {}
    for path in call.properties:
        try:
            settings |= javaproperties.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, javaproperties.InvalidUEscapeError) as error:
            raise EngineStartError(f"Spark's properties file {path} cannot be read: {error}") from error
    settings |= call.conf
    address = environment.get("SPARK_DRIVER_BIND_ADDRESS")
    if address:
        settings["spark.driver.bindAddress"] = address
        settings["spark.executorEnv.SPARK_DRIVER_POD_IP"] = address
    options = ["--master", settings["spark.master"]] if "spark.master" in settings else []
    for key, value in sorted(settings.items()):
        if key.startswith("spark.") and key not in _OURS:
            options += ["--conf", f"{key}={value}"]
    return [*options, *call.arguments]
