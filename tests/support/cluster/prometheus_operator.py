"""The definitions of the Prometheus Operator, from its Go module: what it serves, not what we believe it does.

They are fetched once, four megabytes whose hash is pinned, and kept beside the programs of the control plane.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compaction.local.cache import cache_directory
from compaction.local.processes.locks import exclusive
from compaction.local.programs import gobuild
from compaction.local.programs.binaries import cache_lock, install_set
from support.time.waiting import eventually

MODULE = "github.com/prometheus-operator/prometheus-operator"
WRAPPER = Path(__file__).with_name("gomodules") / "prometheus-operator"
KINDS = ("podmonitors", "prometheusrules")
FILES = tuple(f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml" for kind in KINDS)


def find_definitions() -> Path | None:
    """The directory that holds them, if it is here."""
    place = _place(_version())
    return place if place.exists() else None


def ensure_definitions(*, report: Callable[[str], None]) -> Path:
    """The directory that holds them, fetched if need be.

    Raises:
        BinaryError: they cannot be fetched; says why.
    """
    if (found := find_definitions()) is not None:
        return found
    version, cache = _version(), cache_directory(os.environ)
    place, module = _place(version), f"{MODULE}@{version}"
    with exclusive(cache_lock(cache), what="fetching definitions", report=report):
        if not place.exists():
            install_set(
                place,
                lambda made: gobuild.fetch(made, module, FILES, wrapper=WRAPPER, cache=cache, report=report),
            )
    return place


def _version() -> str:
    required = re.search(rf"{re.escape(MODULE)} (\S+)", (WRAPPER / "go.mod").read_text())
    assert required is not None
    return required[1]


def _place(version: str) -> Path:
    return cache_directory(os.environ) / "control-plane" / f"prometheus-operator-{version}"


def define(kubectl: Any) -> None:
    """Put the definitions on the server and wait until it serves them."""
    kubectl("apply", "--server-side", "-f", str(ensure_definitions(report=print)))
    wait = ("wait", "--for=condition=Established", "--timeout=60s", "crd")
    names = [f"{kind}.monitoring.coreos.com" for kind in KINDS]
    # kubectl gives up at once on an object without conditions, which it has for a moment.
    eventually(lambda: kubectl(*wait, *names, check=False).returncode == 0, "the definitions to be served")
