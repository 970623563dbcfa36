"""Files with the options of an object store: YAML or JSON, one `option: value` per line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from compaction.api.manifests.yaml_loader import BoundedLoader
from compaction.api.text.safe import cut, printable
from compaction.storage.errors import StoreOptionsError

MAX_TEXT: Final = 1 << 20
"""Bytes; a file of options has a few hundred."""


def options_of_file(path: Path) -> Mapping[str, str]:
    """The options, as text. Raises StoreOptionsError and OSError."""
    with path.open("rb") as file:
        data = file.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise StoreOptionsError(f"{path}: larger than {MAX_TEXT} bytes: this is not a file of options")
    try:
        document = yaml.load(data.decode(), Loader=BoundedLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        # Its own words quote the text.
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise StoreOptionsError(f"{path}: neither YAML nor JSON{line}: write one `option: value` per line") from None
    if not isinstance(document, dict):
        raise StoreOptionsError(f"{path}: holds no options: write one `option: value` per line")
    return {str(name): _text(path, str(name), value) for name, value in document.items()}


def _text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise StoreOptionsError(f"{path}: option {printable(cut(name, 100))} has no plain value: put it into quotes")
