"""A repository for commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.staging.staging_repos import StagingCommands, in_folder


@pytest.fixture
def staging(tmp_path: Path) -> StagingCommands:
    """`compactor staging` on a repository with branch `main`."""
    return in_folder(tmp_path / "store")
