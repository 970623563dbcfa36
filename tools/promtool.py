"""promtool and other programs that only tests need: found on PATH, in the cache, or built."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.processes.process import cache_directory, exclusive
from compaction.local.programs import gobuild
from compaction.local.programs.binaries import BuildTarget, cache_lock, install_set, remove_unfinished
from compaction.local.programs.gobuild import PROMETHEUS_VERSION

# Programs that only tests need: found on PATH, in the cache, or built like the programs of the control plane.
#
# `make setup` never waits for them; `make test` builds them beside the tests that need none
# (tests/support/programs.py). Standard library only.

Report = Callable[[str], None]
Build = Callable[[Path, tuple[str, ...], Path, Report], None]


@dataclass(frozen=True, slots=True)
class ExtraProgram:
    """One program of `gobuild.PACKAGES`; `origin` names its project and version in the cache."""

    name: str
    origin: str

    def find(self, environment: Mapping[str, str] | None = None) -> Path | None:
        """The program that is already here, or None."""
        environment = os.environ if environment is None else environment
        places = os.pathsep.join([environment.get("PATH", ""), str(self._place(cache_directory(environment)))])
        found = shutil.which(self.name, path=places)
        return Path(found).absolute() if found else None

    def ensure(
        self,
        *,
        report: Report = lambda _: None,
        environment: Mapping[str, str] | None = None,
        build: Build | None = None,
    ) -> Path:
        """The program, built when it is not here yet (a few CPU-minutes). Safe to call from two processes at once.

        Raises:
            BinaryError: it could not be built; says why.
        """
        environment = os.environ if environment is None else environment
        make = gobuild.build if build is None else build
        if found := self.find(environment):
            return found
        cache = cache_directory(environment)
        with exclusive(cache_lock(cache), what=f"building {self.name}", report=report):
            if found := self.find(environment):
                return found
            remove_unfinished(cache)
            install_set(self._place(cache), lambda place: make(place, (self.name,), cache, report))
        return self._place(cache) / self.name

    def _place(self, cache: Path) -> Path:
        return cache / "control-plane" / f"{self.origin}-{BuildTarget.here()}"


# promtool, which tries the alerts (about three CPU-minutes to build). `extra` says where it comes from.

PROMTOOL: Final = ExtraProgram("promtool", f"prometheus-{PROMETHEUS_VERSION}")
find_promtool = PROMTOOL.find
ensure_promtool = PROMTOOL.ensure
