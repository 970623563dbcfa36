"""Find the Java runtime that Spark needs, and say what to install when there is none.

JAVA_HOME wins over PATH, as in Spark's own scripts. Checked before Spark is started, because its own message is a
stack trace.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compaction.exceptions import JavaError

MINIMUM = 17
ADVICE = (
    f"install a Java {MINIMUM} runtime (Debian, Ubuntu: openjdk-17-jre-headless; Fedora: java-17-openjdk-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME to one"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that is new enough: its program and feature version."""

    program: Path
    version: int


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The runtime that Spark will use.

    Raises:
        JavaError: none is found, it does not run, or it is older than 17; names the package to install.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    where = f"JAVA_HOME={home}" if home else "PATH"
    found = shutil.which("java", path=str(Path(home) / "bin") if home else environment.get("PATH", ""))
    if found is None:
        raise JavaError(f"no java in {where}: {ADVICE}")
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = parse_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise JavaError(f"{found} ({where}) does not run: {(answer.stderr or answer.stdout).strip()[:200]}: {ADVICE}")
    if version < MINIMUM:
        raise JavaError(f"{found} ({where}) is Java {version}, Spark needs {MINIMUM} or later: {ADVICE}")
    return Java(program=Path(found), version=version)


def parse_version(text: str) -> int | None:
    """The feature version in the output of `java -version`: 8 for "1.8.0_402", 17 for "17.0.15", 21 for "21-ea"."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def main() -> int:
    """Check before a long set-up: `python -m compaction.local.java`."""
    try:
        find_java()
    except JavaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
