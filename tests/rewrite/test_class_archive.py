"""Spark starts from an archive of its classes where there is one, and as ever where there is none."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.local.processes.process import class_archives
from compaction.local.programs.spark_archive import ensure_archive
from compaction.worker.spark import settings
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import Java, SparkSettings, find_java
from support.depth import at_depth

JAVA = Java(home=Path("/opt/java"), version=17)
FROM_ARCHIVE = "shared objects file (top)"
"""What a JVM says of a class that it took from the archive."""


def test_each_java_has_an_archive_of_its_own(tmp_path: Path) -> None:
    home = tmp_path / "java"
    home.mkdir()
    (home / "release").write_text('JAVA_VERSION="17.0.1"')
    java = replace(JAVA, home=home)
    first = settings.archive_path(tmp_path, java)
    assert first == settings.archive_path(tmp_path, java)
    (home / "release").write_text('JAVA_VERSION="17.0.2"')
    assert len({first, *(settings.archive_path(tmp_path, item) for item in (java, JAVA))}) == 3


def test_without_an_archive_there_are_no_options(tmp_path: Path) -> None:
    assert settings.options_to_use(None, JAVA) == ""
    assert settings.options_to_use(tmp_path / "nowhere", JAVA) == ""
    archive = settings.archive_path(tmp_path, JAVA)
    archive.write_bytes(b"")
    assert f"-XX:SharedArchiveFile={archive}" in settings.options_to_use(tmp_path, JAVA)


def loaded(directory: Path, archives: Path) -> tuple[str, int]:
    """How many classes Spark took from the archive, as the JVM itself says; and a result of a task."""
    log = directory / f"classes-{archives.name}.log"
    conf = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={log}"}
    with SparkEngine(
        SparkSettings(master="local[1]", conf=conf, scratch_parent=directory, archives=archives)
    ) as engine:
        result = engine.submit(str.upper, "done", tag="t").result()
    return result, log.read_text().count(FROM_ARCHIVE)


@pytest.mark.spark
def test_spark_starts_from_the_archive(tmp_path: Path) -> None:
    """In a short run from that which `make setup` has made, as every fresh machine makes it."""
    archives = at_depth(short=class_archives(), deep=tmp_path / "archives")
    there = settings.archive_path(archives, find_java()).is_file()
    said: list[str] = []
    archive = ensure_archive(archives, report=said.append)
    assert len(said) == (not there)
    # Other checkouts have theirs in the cache.
    assert at_depth(short=[archive], deep=[*archives.iterdir()]) == [archive]
    result, shared = loaded(tmp_path, archives)
    assert result == "DONE"
    assert shared > 1000
    assert ensure_archive(archives, report=said.append) == archive
    assert len(said) == (not there)


def test_a_jvm_starts_from_a_broken_archive_as_without(tmp_path: Path) -> None:
    """Whether it runs Spark is no matter to it: it opens the archive before any class."""
    java = find_java()
    settings.archive_path(tmp_path, java).write_bytes(b"no archive")
    options = settings.options_to_use(tmp_path, java).split()
    assert options
    command = [str(java.home / "bin" / "java"), *options, "-Xlog:class+load", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "java.lang.Object" in answer.stdout
    assert FROM_ARCHIVE not in answer.stdout
