"""A machine of one's own for the search for programs: small fake programs in temporary directories, no PATH of the
host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Programs = Callable[..., Path]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """`programs("folder", "etcd", ...)` makes a directory with executable files of these names."""

    def make(folder: str, *names: str) -> Path:
        directory = tmp_path / folder
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            (directory / name).write_text("#!/bin/sh\nexit 0\n")
            (directory / name).chmod(0o755)
        return directory

    return make
