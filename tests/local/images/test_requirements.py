"""What the images hold is what runs in them imports: tried with everything else of this installation hidden, and
without the parts of the package for workstations."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tools.images.build import CHECKOUT

RUNS = {
    "operator": (
        "compaction.cli.cluster.operator",
        "compaction.segments.adapter",
        "compaction.blocks.adapter",
    ),
    "worker": ("compaction.cli.cluster.worker", "compaction.blocks.rewriting.task", "compaction.blocks.store"),
}
"""What the image's containers import at the least."""
HIDE = """
import importlib, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)
hidden = set(sys.argv[2].split(","))
sys.meta_path.insert(0, Hidden())
for module in sys.argv[1].split(","):
    importlib.import_module(module)
import sqlalchemy
sqlalchemy.create_engine("postgresql+psycopg://nowhere/index").dialect.dbapi.connect
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.store import ensure_schema
database = IndexDatabase.open("sqlite://" + sys.argv[3])
ensure_schema(database, identity="01ARZ3NDEKTSV4RRFFQ69G5FAV")
database.close()
"""


def held_by(image: str) -> set[str]:
    """Names of the distributions that the image's list pins, as Python compares them."""
    lines = (CHECKOUT / f"requirements-{image}.txt").read_text().splitlines()
    return {line.partition("==")[0].replace("_", "-").lower() for line in lines if line[:1].isalpha()}


@pytest.mark.parametrize("image", RUNS)
def test_an_image_holds_what_it_imports(image: str, installed: Path, tmp_path: Path) -> None:
    held = held_by(image)
    hidden = {
        module
        for module, names in packages_distributions().items()
        if not {name.replace("_", "-").lower() for name in names} & (held | {"compaction-operator"})
    }
    assert {"duckdb", "polars", "kubernetes"} <= hidden, "what tests and people need is hidden"
    words = [",".join(RUNS[image]), ",".join(sorted(hidden)), f"/{tmp_path}/index.db"]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HIDE, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )
    assert answer.returncode == 0, answer.stderr


def test_what_both_images_hold_is_of_one_version() -> None:
    """They read and write the same index and the same blocks."""
    pins = {
        image: {
            line.partition("==")[0]: line.split()[0]
            for line in (CHECKOUT / f"requirements-{image}.txt").read_text().splitlines()
            if "==" in line and line[:1].isalpha()
        }
        for image in RUNS
    }
    for name in ("alembic", "obstore", "psycopg", "pyarrow", "python-ulid", "sqlalchemy", "xxhash"):
        assert pins["operator"][name] == pins["worker"][name]
