"""What the tests take from public Go modules: pinned by the go.mod and go.sum of a wrapper of ours, made once on a
machine, and kept beside the programs of the control plane.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compaction.local.processes.process import cache_directory, exclusive
from compaction.local.programs import gobuild
from compaction.local.programs.binaries import cache_lock, install_set
from support.clocks import TIMEOUT_FLAG, eventually


@dataclass(frozen=True, slots=True)
class PinnedModule:
    """`path` of the module; `wrapper`: the directory whose go.mod requires it."""

    path: str
    wrapper: Path

    @property
    def version(self) -> str:
        required = re.search(rf"{re.escape(self.path)} (\S+)", (self.wrapper / "go.mod").read_text())
        assert required is not None, f"{self.wrapper / 'go.mod'} does not require {self.path}"
        return required[1]

    def __str__(self) -> str:
        """As Go names it, with its version."""
        return f"{self.path}@{self.version}"


def kept(name: str) -> Path:
    """Where the cache keeps what is made under this name, which carries every version inside."""
    return cache_directory(os.environ) / "control-plane" / name


def made_once(place: Path, make: Callable[[Path, Path], None], *, what: str, report: Callable[[str], None]) -> Path:
    """`place`, which `make` fills where it is not there yet: it is given an empty directory, and the cache.

    What is there is taken without the lock of the cache, under which another process may build something for minutes.

    Raises:
        BinaryError: from `make`; nothing is left.
    """
    if place.exists():
        return place
    cache = cache_directory(os.environ)
    with exclusive(cache_lock(cache), what=what, report=report):
        if not place.exists():
            install_set(place, lambda made: make(made, cache))
    return place


# The definitions of the Prometheus Operator, from its Go module: what it serves, not what we believe it does.
#
# They are fetched once, four megabytes whose hash is pinned, and kept beside the programs of the control plane.

MODULE = PinnedModule(
    "github.com/prometheus-operator/prometheus-operator", Path(__file__).with_name("gomodules") / "prometheus-operator"
)
KINDS = ("podmonitors", "prometheusrules")
FILES = tuple(f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml" for kind in KINDS)


def find_definitions() -> Path | None:
    """The directory that holds them, if it is here."""
    place = _place()
    return place if place.exists() else None


def ensure_definitions(*, report: Callable[[str], None]) -> Path:
    """The directory that holds them, fetched if need be.

    Raises:
        BinaryError: they cannot be fetched; says why.
    """

    def make(made: Path, cache: Path) -> None:
        gobuild.fetch(made, str(MODULE), FILES, wrapper=MODULE.wrapper, cache=cache, report=report)

    return made_once(_place(), make, what="fetching definitions", report=report)


def _place() -> Path:
    return kept(f"prometheus-operator-{MODULE.version}")


def define(kubectl: Any) -> None:
    """Put the definitions on the server and wait until it serves them."""
    kubectl("apply", "--server-side", "-f", str(ensure_definitions(report=print)))
    wait = ("wait", "--for=condition=Established", TIMEOUT_FLAG, "crd")
    names = [f"{kind}.monitoring.coreos.com" for kind in KINDS]
    # kubectl gives up at once on an object without conditions, which it has for a moment.
    eventually(lambda: kubectl(*wait, *names, check=False).returncode == 0, "the definitions to be served")
