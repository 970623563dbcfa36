"""What is in the images, and what is not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from images.containers import Unpacked
from tools.images.build import CHECKOUT, RELEASE, BuiltImage, Image, package_sources, pip_settings, sources

BOUNDS = {Image.OPERATOR: 400 << 20, Image.WORKER: 700 << 20}
"""Bytes of the archives, uncompressed; docs/images.md has what they are. Growth should be meant."""
TOOLS = ("gcc", "cc", "c++", "ld", "as", "make", "pip", "pip3", "uv", "javac", "jlink", "git", "curl", "wget")


@pytest.fixture(params=list(Image))
def image(request: pytest.FixtureRequest) -> Image:
    found: Image = request.param
    return found


@pytest.fixture
def unpacked(image: Image, request: pytest.FixtureRequest) -> Unpacked:
    found: Unpacked = request.getfixturevalue(image.value)
    return found


def test_the_archive_is_named_and_not_larger_than_meant(image: Image, built: dict[Image, BuiltImage]) -> None:
    assert built[image].bytes == built[image].archive.stat().st_size < BOUNDS[image]
    assert built[image].archive.name.startswith(image.tag.replace(":", "-"))


def test_it_runs_as_nobody_special_under_an_init_and_says_what_it_is(image: Image, unpacked: Unpacked) -> None:
    user = {Image.OPERATOR: "65532:65532", Image.WORKER: "185:0"}[image]
    assert unpacked.config["User"] == user
    assert f":{user}:" in (unpacked.root / "etc/passwd").read_text(), "the user has a name"
    assert unpacked.config["Entrypoint"][:3] == ["/usr/bin/tini", "-s", "--"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in unpacked.labels.items()}
    assert labels["title"] == image.tag.partition(":")[0]
    assert labels["version"] == image.tag.partition(":")[2]
    assert labels["revision"]
    assert labels["description"]


def test_nothing_is_left_to_build_with_or_to_gain_privileges_by(unpacked: Unpacked) -> None:
    programs = {path.name for path in unpacked.files if os.access(path, os.X_OK)}
    assert programs & set(TOOLS) == set()
    privileged = [str(path) for path in unpacked.files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert privileged == []


def test_no_cache_no_list_and_nothing_of_the_machine_it_was_built_on(unpacked: Unpacked) -> None:
    root = unpacked.root
    for empty in ("root/.cache", "var/lib/apt/lists", "var/cache/apt", "run/secrets", "tmp", "src", "wheels"):
        assert [*(root / empty).glob("*")] == []
    hosts = {line.split()[1] for line in package_sources(RELEASE).splitlines()} | {
        line.partition("=")[2].strip() for line in pip_settings().splitlines() if "://" in line
    }
    places = [path for path in (root / "etc").rglob("*") if path.is_file() and not path.is_symlink()]
    told = [str(path) for path in places if any(host in path.read_text(errors="replace") for host in hosts)]
    assert told == []


def test_python_is_compiled(unpacked: Unpacked) -> None:
    """With a read-only root it would be compiled at every start."""
    site = Path("lib/python3.11/site-packages")
    sources = [
        path for place in ("opt/venv", "opt/compaction") for path in (unpacked.root / place / site).rglob("*.py")
    ]
    assert len(sources) > 1000
    bare = [path for path in sources if not [*(path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")]]
    # What is no Python of this version (templates of generators) cannot be compiled.
    assert [str(path) for path in bare if "_vendor" not in path.parts] == []


def test_of_the_package_it_holds_what_reaches_its_build(image: Image, unpacked: Unpacked) -> None:
    """Nothing for workstations (tests/local/images/test_contents.py), and everything else."""
    place = unpacked.root / "opt/compaction/lib/python3.11/site-packages/compaction"
    found = {path.relative_to(place) for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    package = CHECKOUT / "operator/compaction"
    assert found == {path.relative_to(package) for path in sources(image) if package in path.parents}
    assert {path.parts[0] for path in found} >= {"blocks", "catalogs", "cli", "kube", "segments", "staging", "worker"}
    assert not {path.parts[:2] for path in found} & {("local", name) for name in ("cluster", "programs")}


def test_the_worker_has_the_jars_that_are_named_and_no_more(worker: Unpacked) -> None:
    jars = {path.name for path in (worker.root / "opt/spark/jars/lib").iterdir()}
    assert 100 < len(jars) < 160
    assert not {name for name in jars if name.startswith(("spark-sql_", "spark-mllib", "hive-", "rocksdb"))}
