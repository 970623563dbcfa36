"""`make manifests`: the files that are made from others: the dashboard, install.yaml, the table in docs/metrics.md."""

from __future__ import annotations

from compaction.local.binaries import ensure_binaries
from support import dashboard, metrics_page
from support.cluster.rendered import HEADER, INSTALL, NAMESPACED, render

if __name__ == "__main__":
    dashboard.DASHBOARD.write_text(dashboard.text())
    metrics_page.PAGE.write_text(metrics_page.page())
    INSTALL.write_text(HEADER + render(ensure_binaries().kubectl, NAMESPACED))
