"""Trees in a folder of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.staging.tree.storage import RangeStorage
from support.staging.staging_trees import open_tree_storage


@pytest.fixture
def storage(tmp_path: Path) -> RangeStorage:
    return open_tree_storage(tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder each time."""
    root = tmp_path_factory.mktemp("trees")
    return (root / str(number) for number in itertools.count())
