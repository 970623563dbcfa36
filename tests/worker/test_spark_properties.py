"""What a SparkApplication's driver is told, in Spark's own words, becomes options of `compactor worker`."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import javaproperties
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from compaction.local.processes.process import class_archives
from compaction.local.programs.spark_archive import ensure_archive
from compaction.worker.errors import EngineStartError
from compaction.worker.spark import settings
from compaction.worker.spark.properties import DriverCall, worker_options
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import Java, SparkSettings, find_java
from support.timing import at_depth

# As Spark 4.3 writes it into the ConfigMap of a driver (java.util.Properties.store).
WRITTEN = """\
#Java properties built from Kubernetes config map with name: spark-drv-1-conf-map
#Sat Nov 21 10:00:00 UTC 2026
spark.master=k8s\\://https\\://kubernetes.default.svc\\:443
spark.submit.deployMode=cluster
spark.app.name=logs-w-0123-abcde
spark.driver.host=logs-driver-svc.ns.svc
spark.driver.port=7078
spark.executor.extraJavaOptions=-Da\\=b -Dc\\=d
spark.kubernetes.executor.podTemplateFile=/opt/spark/template.yaml
spark.submit.pyFiles=
"""
WORDS = [
    "--properties-file", "FILE", "--class", "org.apache.spark.deploy.PythonRunner",
    "local:///opt/compaction/worker.py", "--namespace", "ns", "--policy", "logs", "--name", "logs-w-0123-abcde",
]  # fmt: skip


def told(tmp_path: Path, *, environment: dict[str, str] | None = None) -> list[str]:
    file = tmp_path / "spark.properties"
    file.write_text(WRITTEN)
    call = DriverCall.parse([str(file) if word == "FILE" else word for word in WORDS])
    return worker_options(call, environment or {})


def test_master_settings_and_the_main_files_own_arguments(tmp_path: Path) -> None:
    options = told(tmp_path, environment={"SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3"})
    assert options[:2] == ["--master", "k8s://https://kubernetes.default.svc:443"]
    assert options[-6:] == WORDS[-6:]
    settings = {options[i + 1] for i, word in enumerate(options) if word == "--conf"}
    assert "spark.driver.bindAddress=10.1.2.3" in settings
    assert "spark.executor.extraJavaOptions=-Da=b -Dc=d" in settings
    assert not {
        setting for setting in settings if setting.startswith(("spark.submit.", "spark.app.name", "spark.master"))
    }


def test_options_of_the_submission_win_over_its_file(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    file.write_text(WRITTEN)
    words = ["--conf", "spark.driver.port=1", "--properties-file", str(file), "/opt/compaction/worker.py"]
    assert "spark.driver.port=1" in worker_options(DriverCall.parse(words), {})


@pytest.mark.parametrize("words", [[], ["--class", "x"], ["local:///opt/other.py"], ["--properties-file"]])
def test_another_main_file_is_refused(words: list[str]) -> None:
    with pytest.raises(EngineStartError, match=r"no main file"):
        DriverCall.parse(words)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    call = DriverCall.parse(["--properties-file", str(tmp_path / "none"), "/opt/compaction/worker.py"])
    with pytest.raises(EngineStartError, match="none cannot be read"):
        worker_options(call, {})


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("! no\n# no\n\n  a = b  ", {"a": "b  "}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=\\u00e9\\t\\n", {"a": "é\t\n"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, settings: dict[str, str]) -> None:
    assert javaproperties.loads(text) == settings


def stored(text: str, *, key: bool) -> str:
    """As java.util.Properties.store writes it."""
    out = ""
    for at, letter in enumerate(text):
        if letter == " " and (key or at == 0):
            out += "\\ "
        elif letter in "\t\n\r\f":
            out += {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[letter]
        elif letter in "=:#!\\":
            out += "\\" + letter
        else:
            out += letter if " " <= letter <= "~" else f"\\u{ord(letter):04x}"
    return out


_TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(_TEXT.filter(bool), _TEXT, max_size=5))
def test_whatever_java_stores_is_read_back(settings: dict[str, str]) -> None:
    text = "\n".join(f"{stored(key, key=True)}={stored(value, key=False)}" for key, value in settings.items())
    assert javaproperties.loads(text) == settings


@tried(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=200))
def test_any_text_has_a_reading_or_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "spark.properties"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    refused = ""
    try:
        worker_options(DriverCall((file,)), {})
    except EngineStartError as error:
        refused = str(error)
    assert not refused or str(file) in refused


def test_an_escape_that_java_refuses_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    file.write_text("spark.a=\\u00zz")
    with pytest.raises(EngineStartError, match=r"spark\.properties cannot be read"):
        worker_options(DriverCall((file,)), {})


# Spark starts from an archive of its classes where there is one, and as ever where there is none.

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
