"""A SparkApplication's driver without spark-submit: its properties file and arguments as options of `compactor worker`.

An operator of SparkApplications submits in cluster mode: the driver's container gets `driver --properties-file FILE
--class ... MAIN ARGUMENTS`, and Spark's own image starts a JVM that starts Python. Here Python comes first, as in a
driver pod made by this operator, because it must outlive the JVM: it renews leases, stops before a commit when it is
asked to end, and its exit code is the container's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compaction.worker.errors import EngineStartError

MAIN_FILE: Final = "/opt/compaction/worker.py"
_OURS: Final = frozenset({"spark.master", "spark.app.name", "spark.submit.deployMode", "spark.submit.pyFiles"})
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPECIAL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:\\.|[^\s=:\\])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


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
            settings |= parse_properties(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
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


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file (java.util.Properties.load): comments, continued lines, escapes; a later key wins."""
    settings = {}
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is not None and match[1]:
            settings[_plain(match[1])] = _plain(match[2])
    return settings


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; an odd number of backslashes at an end continues with the next line's first word."""
    pending = ""
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _plain(text: str) -> str:
    def meant(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word[1:], 16)) if len(word) > 1 else _SPECIAL.get(word, word)

    return _ESCAPE.sub(meant, text)
