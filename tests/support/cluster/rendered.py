"""The manifests as a cluster gets them: rendered by the kustomize inside kubectl."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "manifests"
NAMESPACED = MANIFESTS / "overlays" / "namespaced"
CLUSTER = MANIFESTS / "overlays" / "cluster"


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML stream, empty documents left out."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def with_components(directory: Path, overlay: Path, *components: str) -> Path:
    """Write a user's own kustomization into `directory`: an overlay with components. Returns the directory."""
    directory.mkdir(parents=True)
    to_manifests = Path(os.path.relpath(MANIFESTS, directory.resolve()))
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "compaction-system",
        "resources": [str(to_manifests / overlay.relative_to(MANIFESTS))],
        "components": [str(to_manifests / "components" / component) for component in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return directory


def names(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(kind, name) of each."""
    return {(item["kind"], item["metadata"]["name"]) for item in objects}
