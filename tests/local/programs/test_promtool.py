"""promtool is found where it is, and made once where it is not; a failed attempt leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.local.errors import BinaryError
from tools.promtool import ensure_promtool, find_promtool


def program(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "promtool"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_one_that_is_installed_is_taken(tmp_path: Path) -> None:
    installed = program(tmp_path / "bin")
    environment = {"PATH": str(tmp_path / "bin"), "COMPACTION_CACHE": str(tmp_path / "cache")}
    assert find_promtool(environment) == installed
    assert ensure_promtool(environment=environment) == installed


def test_it_is_made_once_and_found_then(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path / "nothing"), "COMPACTION_CACHE": str(tmp_path / "cache")}
    made: list[tuple[str, ...]] = []

    def build(place: Path, programs: tuple[str, ...], cache: Path, report: Callable[[str], None]) -> None:
        assert cache == tmp_path / "cache"
        made.append(programs)
        program(place)

    assert find_promtool(environment) is None
    first = ensure_promtool(environment=environment, build=build)
    assert ensure_promtool(environment=environment, build=build) == first == find_promtool(environment)
    assert made == [("promtool",)]


def test_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    environment = {"PATH": "", "COMPACTION_CACHE": str(tmp_path / "cache")}

    def build(place: Path, programs: tuple[str, ...], cache: Path, report: Callable[[str], None]) -> None:
        program(place)
        raise BinaryError("no module proxy answers")

    with pytest.raises(BinaryError, match="no module proxy"):
        ensure_promtool(environment=environment, build=build)
    assert find_promtool(environment) is None
    assert list((tmp_path / "cache" / "control-plane").iterdir()) == []
