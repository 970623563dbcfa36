"""Runs inside pytest (`-p mutation.inside`): sees to it that the copy is tested, and notes which test failed first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

import compaction

ROOT: Final = "MUTATION_ROOT"
"""The copy of the tree; nothing is tested unless both the package and the tests come from there."""
FAILED: Final = "MUTATION_FAILED"
"""The file that takes the node id of the first test that failed, in its set-up, itself or at its end."""


def pytest_configure(config: pytest.Config) -> None:
    root = Path(os.environ[ROOT])
    package = Path(str(compaction.__file__))
    for found in (package, Path(__file__), config.rootpath / "tests"):
        if not found.is_relative_to(root):
            raise pytest.UsageError(f"{found} is not in {root}: this run would not test the defect")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = Path(os.environ[FAILED])
    if report.failed and not path.exists():
        path.write_text(report.nodeid)
