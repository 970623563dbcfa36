"""Finds the Java runtime that Spark runs on: JAVA_HOME, then PATH; version 17 or later.

What was tried instead: docs/design/local-control-plane.md#java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from compaction.worker.errors import JavaError

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
