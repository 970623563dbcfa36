"""Secrets and ConfigMaps from YAML as people write it for kubectl: beside the policy that names them.

No value is ever part of a message, also when the text is not what it should be.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from compaction.api.manifests.objects import documents_of
from compaction.api.text.safe import cut, printable
from compaction.errors import CONFIG_MAP, InvalidManifestError

SECRET_KIND: Final = "Secret"
CONFIG_MAP_KIND: Final = "ConfigMap"


def load_secrets(text: str, *, source: str) -> dict[str, dict[str, str]]:
    """Every Secret in a YAML (or JSON) text: name -> key -> text, `stringData` above `data` as in Kubernetes; and every
    ConfigMap, whose name begins with `CONFIG_MAP`.

    Raises InvalidManifestError: not YAML, or a Secret that the API server would refuse, or whose value is no text.
    """
    kinds = (SECRET_KIND, CONFIG_MAP_KIND)
    found = [document for document in documents_of(text, source) if document.get("kind") in kinds]
    return dict(_secret(document, source) for document in found)


def _secret(document: Mapping[str, Any], source: str) -> tuple[str, dict[str, str]]:
    kind, metadata = document["kind"], document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidManifestError(f"{source}: {kind}: metadata.name: is required: give the {kind} a name")
    where = f"{source}: {kind} {printable(cut(name, 253))}"
    if kind == CONFIG_MAP_KIND:
        return f"{CONFIG_MAP}{name}", {key: _line(value) for key, value in _member(document, "data", where).items()}
    values = {key: _decoded(where, key, value) for key, value in _member(document, "data", where).items()}
    values |= {key: _line(value) for key, value in _member(document, "stringData", where).items()}
    return name, values


def _member(document: Mapping[str, Any], member: str, where: str) -> dict[str, str]:
    values = document.get(member) or {}
    if not isinstance(values, dict):
        raise InvalidManifestError(f"{where}: {member}: must be keys with their values")
    for key, value in values.items():
        if not isinstance(value, str):
            raise InvalidManifestError(f"{where}: {member}.{_key(key)}: must be text: put the value into quotes")
    return {str(key): value for key, value in values.items()}


def _decoded(where: str, key: str, value: str) -> str:
    try:
        return _line(base64.b64decode(value, validate=True).decode())
    except (binascii.Error, ValueError):
        advice = "must be base64 of a text in UTF-8: write plain text under stringData"
        raise InvalidManifestError(f"{where}: data.{_key(key)}: {advice}") from None


def _line(value: str) -> str:
    """Without the line breaks that editors leave at the end of a file, as workers read it."""
    return value.rstrip("\r\n")


def _key(key: object) -> str:
    return printable(cut(str(key), 253))
