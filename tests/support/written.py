"""`make manifests`: the files under manifests/ that are made from others."""

from __future__ import annotations

from compaction.local.binaries import ensure_binaries
from support import dashboard
from support.rendered import HEADER, INSTALL, NAMESPACED, render

if __name__ == "__main__":
    dashboard.DASHBOARD.write_text(dashboard.text())
    INSTALL.write_text(HEADER + render(ensure_binaries().kubectl, NAMESPACED))
