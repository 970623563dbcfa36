"""What all whole runs of the demos share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.small_demo import COMMAND


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for the demo; whatever a failing test leaves running in it is stopped."""
    place = tmp_path / "demo"
    yield place
    subprocess.run([*COMMAND, "--down", "--directory", str(place)], check=True)
