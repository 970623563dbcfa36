"""Generated files of a checkout: `crds/`, `install.yaml`, the links of alerts, and the table in `docs/metrics.md`.

`python -m tools.shipped --write .` writes them, with `--check` it names those that differ.
"""

from tools.shipped.files import (
    ShippedFile,
    definition_files,
    drifted,
    obsolete_definitions,
    shipped_files,
    write_files,
)

__all__ = [
    "ShippedFile",
    "definition_files",
    "drifted",
    "obsolete_definitions",
    "shipped_files",
    "write_files",
]
