"""The executable model of Ra's compaction makes what Ra made, file by file and byte by byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.stores.ra_owner import RaOwner
from support.stores.segment_logs import append_random_steps, live_set

pytestmark = pytest.mark.fixtures


def files(directory: Path) -> dict[str, str]:
    """Target of a link, sha256 of a file, by name."""
    return {
        path.name: path.readlink().name if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("*.segment")
    }


def test_all_rounds_of_all_random_histories(manifest: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    rounds = 0
    for case in manifest("06-random-cases")["cases"]:
        directory = tmp_path / str(case["id"])
        directory.mkdir()
        owner = RaOwner(directory, case["comp_max_count"], case["comp_max_size"])
        for number, turn in enumerate(case["rounds"]):
            append_random_steps(directory, case, turn["steps"])
            compact = owner.major if turn["op"] == "major" else owner.minor
            compact(snapshot=turn["snapshot"], live=live_set(turn["live"]))
            assert files(directory) == {f[0]: f[-1] for f in turn["files"]}, f"case {case['id']}, round {number}"
            rounds += 1
    assert rounds == 182
