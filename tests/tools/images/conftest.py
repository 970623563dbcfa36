"""The package as the images hold it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from house.sources import PACKAGE
from tools.images.build import Image, sources


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the package that reach a build, somewhere else."""
    place = tmp_path_factory.mktemp("image")
    for path in sources(Image.OPERATOR):
        if PACKAGE in path.parents:
            copy = place / path.relative_to(PACKAGE.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return place
