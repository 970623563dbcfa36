"""Which files are made from others, and from what; paths are relative to the root of a checkout."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.errors import ShippedFilesError
from compaction.local.programs.binaries import ensure_binaries
from compaction.local.shipped import alert_rules, dashboard, metrics_page

DASHBOARD: Final = Path("manifests/components/grafana/dashboard.json")
METRICS_PAGE: Final = Path("docs/metrics.md")
INSTALL: Final = Path("manifests/install.yaml")
RULES: Final = Path("manifests/components/prometheus/rules.yaml")
METADATA: Final = Path("pyproject.toml")
NAMESPACED: Final = Path("manifests/overlays/namespaced")

INSTALL_HEADER: Final = """\
# Everything for an operator that manages the policies of the namespace compaction-system. Rendered from
# manifests/overlays/namespaced by `make manifests`; docs/install.md says how it is used and how it is changed.
#
#   kubectl apply --server-side -f install.yaml
"""


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """One file: where it is, and its text as it must be (given the root)."""

    path: Path
    text: Callable[[Path], str]


def shipped_files() -> tuple[ShippedFile, ...]:
    """All of them. The kubectl that renders `install.yaml` is found or made when its text is asked for."""
    return (
        ShippedFile(DASHBOARD, lambda root: dashboard.text()),
        ShippedFile(METRICS_PAGE, lambda root: metrics_page.page((root / METRICS_PAGE).read_text(encoding="utf-8"))),
        ShippedFile(RULES, rules),
        ShippedFile(INSTALL, lambda root: install(ensure_binaries().kubectl, root)),
    )


def rules(root: Path) -> str:
    """The alerts, with links to the runbooks of the repository that the metadata names."""
    repository = alert_rules.repository_of((root / METADATA).read_text(encoding="utf-8"))
    return alert_rules.with_links((root / RULES).read_text(encoding="utf-8"), repository)


def drifted(root: Path, files: Iterable[ShippedFile]) -> list[Path]:
    """Those that are missing or out of date.

    Raises:
        ShippedFilesError: one cannot be made (says of which, and why).
    """
    return list(_differing(root, files))


def write_files(root: Path, files: Iterable[ShippedFile]) -> list[Path]:
    """Write those that differ; returns them. Raises as `drifted`."""
    differing = _differing(root, files)
    for path, text in differing.items():
        (root / path).write_text(text, encoding="utf-8")
    return list(differing)


def _differing(root: Path, files: Iterable[ShippedFile]) -> dict[Path, str]:
    """The texts of those that differ: made once, because kustomize takes its time."""
    return {one.path: text for one in files if (text := one.text(root)) != _present(root / one.path)}


def install(kubectl: Path, root: Path) -> str:
    """`install.yaml`: the overlay for one namespace, as the kustomize inside kubectl renders it."""
    return INSTALL_HEADER + render(kubectl, root / NAMESPACED)


def render(kubectl: Path, directory: Path) -> str:
    """The YAML documents of a kustomization. Raises ShippedFilesError with kustomize's own words."""
    answer = subprocess.run([str(kubectl), "kustomize", str(directory)], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ShippedFilesError(f"kubectl kustomize {directory}: {answer.stderr}")
    return answer.stdout


def _present(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
