"""Runs the commands of stores in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.commands import Run
from compaction.segments.cli.commands import group
from support.stores.block_commands import BlockCommands, in_folder


@pytest.fixture
def run() -> Run:
    def invoke(*args: str | Path) -> Result:
        result = CliRunner().invoke(group, [str(arg) for arg in args])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return invoke


@pytest.fixture
def blocks(tmp_path: Path) -> BlockCommands:
    """`compactor blocks` on a store in a folder."""
    return in_folder(tmp_path / "store")
