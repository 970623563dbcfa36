"""The definitions of the Prometheus Operator, from its Go module: what it serves, not what we believe it does.

They are fetched once, four megabytes whose hash is pinned, and kept beside the programs of the control plane.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from compaction.local.programs import gobuild
from support.pinned_modules import PinnedModule, kept, made_once
from support.time.waiting import eventually

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
    wait = ("wait", "--for=condition=Established", "--timeout=60s", "crd")
    names = [f"{kind}.monitoring.coreos.com" for kind in KINDS]
    # kubectl gives up at once on an object without conditions, which it has for a moment.
    eventually(lambda: kubectl(*wait, *names, check=False).returncode == 0, "the definitions to be served")
