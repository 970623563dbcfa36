"""The definitions of the Prometheus Operator, from its Go module: what it serves, not what we believe it does.

They are fetched once, four megabytes whose hash is pinned, and kept beside the programs of the control plane.
"""

from __future__ import annotations

import os
import re
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


def definitions() -> Path:
    """The directory that holds them."""
    required = re.search(rf"{re.escape(MODULE)} (\S+)", (WRAPPER / "go.mod").read_text())
    assert required is not None
    module, cache = f"{MODULE}@{required[1]}", cache_directory(os.environ)
    place = cache / "control-plane" / f"prometheus-operator-{required[1]}"
    if place.exists():
        return place
    with exclusive(cache_lock(cache), what="fetching definitions", report=print):
        if not place.exists():
            install_set(place, lambda made: gobuild.fetch(made, module, FILES, wrapper=WRAPPER, cache=cache))
    return place


def define(kubectl: Any) -> None:
    """Put the definitions on the server and wait until it serves them."""
    kubectl("apply", "--server-side", "-f", str(definitions()))
    wait = ("wait", "--for=condition=Established", "--timeout=60s", "crd")
    names = [f"{kind}.monitoring.coreos.com" for kind in KINDS]
    # kubectl gives up at once on an object without conditions, which it has for a moment.
    eventually(lambda: kubectl(*wait, *names, check=False).returncode == 0, "the definitions to be served")


if __name__ == "__main__":
    definitions()
