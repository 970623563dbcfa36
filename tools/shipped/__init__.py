"""Generated files of a checkout: `install.yaml`, the links of alerts, and the table in `docs/metrics.md`.

`python -m tools.shipped --write .` writes them, with `--check` it names those that differ. A module that
imports this room needs `shipped_files`; the resource definitions have a command of their own (`compactor crds`).
"""

from tools.shipped.files import ShippedFile, drifted, shipped_files, write_files

__all__ = ["ShippedFile", "drifted", "shipped_files", "write_files"]
