"""The manifests as a cluster gets them: rendered by the kustomize inside kubectl.

`python -m support.rendered` (make manifests) writes manifests/install.yaml.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from compaction.local.binaries import ensure_binaries

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
INSTALL = MANIFESTS / "install.yaml"
NAMESPACED = MANIFESTS / "overlays" / "namespaced"
CLUSTER = MANIFESTS / "overlays" / "cluster"

HEADER = """\
# Everything for an operator that looks after the policies of the namespace compaction-system. Rendered from
# manifests/overlays/namespaced by `make manifests`; docs/install.md says how it is used and how it is changed.
#
#   kubectl apply --server-side -f install.yaml
"""


def render(kubectl: str | Path, directory: Path) -> str:
    """The YAML documents of a kustomization. Raises RuntimeError with kustomize's own words."""
    answer = subprocess.run([str(kubectl), "kustomize", str(directory)], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise RuntimeError(f"kubectl kustomize {directory}: {answer.stderr}")
    return answer.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML stream, empty documents left out."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def names(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(kind, name) of each."""
    return {(one["kind"], one["metadata"]["name"]) for one in objects}


def main() -> None:
    """Write install.yaml anew."""
    INSTALL.write_text(HEADER + render(ensure_binaries().kubectl, NAMESPACED))


if __name__ == "__main__":
    main()
