"""promtool, which tries the alerts: found on PATH, in the cache, or built like the programs of the control plane.

Only the tests need it, so `make setup` and the demo never wait for it; `make test` does. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from compaction.exceptions import BinaryError
from compaction.local import gobuild
from compaction.local.binaries import Target, cache_directory, cache_lock, install_set, remove_unfinished
from compaction.local.locks import exclusive
from compaction.local.versions import PROMETHEUS_VERSION

PROGRAM = "promtool"
Report = Callable[[str], None]
Build = Callable[[Path, tuple[str, ...], Path, Report], None]


def find_promtool(environment: Mapping[str, str] | None = None) -> Path | None:
    """The program that is already here, or None."""
    environment = os.environ if environment is None else environment
    places = os.pathsep.join([environment.get("PATH", ""), str(_place(cache_directory(environment)))])
    found = shutil.which(PROGRAM, path=places)
    return Path(found).absolute() if found else None


def ensure_promtool(
    *, report: Report = lambda _: None, environment: Mapping[str, str] | None = None, build: Build = gobuild.build
) -> Path:
    """The program, built when it is not here yet (about three CPU-minutes). Safe to call from two processes at once.

    Raises:
        BinaryError: it could not be built; says why.
    """
    environment = os.environ if environment is None else environment
    if found := find_promtool(environment):
        return found
    cache = cache_directory(environment)
    with exclusive(cache_lock(cache), what="building promtool", report=report):
        if found := find_promtool(environment):
            return found
        remove_unfinished(cache)
        install_set(_place(cache), lambda place: build(place, (PROGRAM,), cache, report))
    return _place(cache) / PROGRAM


def _place(cache: Path) -> Path:
    return cache / "control-plane" / f"prometheus-{PROMETHEUS_VERSION}-{Target.here()}"


def main() -> int:
    """Provide the program; `make test` runs this before the tests, which have time limits."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    try:
        ensure_promtool(
            report=lambda line: print(f"[promtool {int(time.monotonic() - started):4d} s] {line}", flush=True)
        )
    except BinaryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
