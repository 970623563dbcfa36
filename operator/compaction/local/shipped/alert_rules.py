"""Links from alerts to runbooks: `runbook_url` of each alert is its page in the repository that pyproject.toml names.

A mirror changes `Repository` there and runs `make manifests`; nothing else knows where the pages are read.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

from compaction.local.errors import ShippedFilesError

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
