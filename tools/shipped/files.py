"""Files that follow from others: resource definitions, metrics page, links of alerts, install.yaml; paths from the root
of a checkout.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import Metric

from compaction.api.crd.definitions import crd_files
from compaction.api.names import GROUP
from compaction.kube.metrics.registry import Metrics
from compaction.local.errors import ShippedFilesError
from compaction.local.programs.binaries import ensure_binaries

# Links from alerts to runbooks: `runbook_url` of each alert is its page in the repository that pyproject.toml names.
#
# A mirror changes `Repository` there and runs `make manifests`; nothing else knows where the pages are read.

RUNBOOKS: Final = "blob/main/docs/runbooks"
"""Where a forge shows the folder of runbooks, below the repository's URL."""
_ALERT: Final = re.compile(r"^\s*- alert: (\w+)$")
_URL: Final = re.compile(r"^(\s*runbook_url: ).*$")


def repository_of(pyproject: str) -> str:
    """The URL of the repository, without a slash at the end. ShippedFilesError when the metadata names none."""
    urls = tomllib.loads(pyproject).get("project", {}).get("urls", {})
    if not isinstance(url := urls.get("Repository"), str) or not url.startswith("https://"):
        raise ShippedFilesError(
            "pyproject.toml names no Repository in [project.urls]: alerts cannot link to their runbooks"
        )
    return url.rstrip("/")


def with_links(rules: str, repository: str) -> str:
    """The rules with the link of each alert, everything else as it is.

    ShippedFilesError names an alert without a line for its link.
    """
    lines, waiting = [], ""
    for line in rules.splitlines():
        if found := _ALERT.match(line):
            _require_none(waiting)
            waiting = found[1]
        elif found := _URL.match(line):
            line, waiting = f"{found[1]}{repository}/{RUNBOOKS}/{waiting}.md", ""
        lines.append(line)
    _require_none(waiting)
    return "\n".join(lines) + "\n"


def _require_none(alert: str) -> None:
    if alert:
        raise ShippedFilesError(
            f"the alert {alert} has no annotation runbook_url: add the line, its value is generated"
        )


# The table in docs/metrics.md of what /metrics exports, made from the metrics themselves.

BEGIN, END = "<!-- metrics -->\n", "<!-- end -->\n"
_ENDINGS = {"counter": "_total", "info": "_info"}


def table() -> str:
    """A row for each family: its name as queries know it, type, labels, and what it says of itself."""
    metrics = Metrics()
    metrics.watched("CompactionPolicy")
    rows = []
    for family, labels in sorted(_families(metrics), key=lambda family: family[0].name):
        name = family.name + _ENDINGS.get(family.type, "")
        rows.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def page(text: str) -> str:
    """The page's text with its table up to date. Raises ShippedFilesError without the marks around the table."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ShippedFilesError(f"the page of metrics has no place for its table: {BEGIN.strip()} ... {END.strip()}")
    return f"{head}{BEGIN}{table()}{END}{tail}"


def _families(metrics: Metrics) -> Iterable[tuple[Metric, tuple[str, ...]]]:
    """Each family with the labels it is declared with; prometheus-client knows them by the collector."""
    for collector in metrics.registry._collector_to_names:
        for family in collector.collect():
            yield family, tuple(getattr(collector, "_labelnames", ()) or _labels_of(family))


def _labels_of(family: Metric) -> tuple[str, ...]:
    names = {name for sample in family.samples for name in sample.labels}
    return tuple(sorted(names - {"le"}))


# Files that are made from others, and their origins; paths are relative to the root of a checkout.

DEFINITIONS: Final = Path("crds")
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


def definition_files() -> tuple[ShippedFile, ...]:
    """The resource definitions, which follow from the models alone."""
    return tuple(_definition(name, text) for name, text in crd_files().items())


def _definition(name: str, text: str) -> ShippedFile:
    return ShippedFile(DEFINITIONS / name, lambda _root: text)


def obsolete_definitions(root: Path) -> list[Path]:
    """Definitions of this group whose resource does not exist any more. Other files beside them are not generated."""
    named = {file.path for file in definition_files()}
    present = (path.relative_to(root) for path in (root / DEFINITIONS).glob(f"{GROUP}_*.yaml"))
    return sorted(path for path in present if path not in named)


def shipped_files() -> tuple[ShippedFile, ...]:
    """Those that follow from other files. The kubectl that renders `install.yaml`, definitions included, is found or
    made when its text is asked for.
    """
    return (
        ShippedFile(METRICS_PAGE, lambda root: page((root / METRICS_PAGE).read_text(encoding="utf-8"))),
        ShippedFile(RULES, rules),
        ShippedFile(INSTALL, lambda root: install(ensure_binaries().kubectl, root)),
    )


def rules(root: Path) -> str:
    """The alerts, with links to the runbooks of the repository that the metadata names."""
    repository = repository_of((root / METADATA).read_text(encoding="utf-8"))
    return with_links((root / RULES).read_text(encoding="utf-8"), repository)


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
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return list(differing)


def _differing(root: Path, files: Iterable[ShippedFile]) -> dict[Path, str]:
    """The texts of those that differ: made once, because kustomize takes its time."""
    return {file.path: text for file in files if (text := file.text(root)) != _present(root / file.path)}


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
