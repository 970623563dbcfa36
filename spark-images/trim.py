"""Steps of the image builds that keep an image small; runs in build stages only, with the standard library.

trim.py packages VENV               drop tests and headers, let the venv find the project's own code, compile
trim.py spark VENV SPARK_HOME JARS  move PySpark's programs and the jars that JARS names; drop what is never loaded
"""

from __future__ import annotations

import compileall
import os
import platform
import py_compile
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

OWN_CODE = Path("/opt/compaction")
UNUSED = (
    "numpy/f2py", "numpy/_core/include", "numpy/_core/lib", "numpy/random/lib", "numpy/testing/tests",
    "sqlalchemy/testing", "alembic/testing", "alembic/templates",
)  # fmt: skip
UNUSED_ARROW = (
    "include", "includes", "src", "*.pyx", "*.pxi", "*.py.in", "libarrow_flight.*", "libarrow_python_flight.*",
    "_flight.*", "libarrow_s3.*", "_s3fs.*", "_gcsfs.*", "_azurefs.*", "_hdfs.*", "_orc.*", "_dataset_orc.*",
    "_pyarrow_cpp_tests.*", "libarrow_python.so", "libarrow_python.so.*.*", "libarrow_python_*.so",
    "libarrow_python_*.so.*.*",
)  # fmt: skip
"""Flight, ORC and file systems (objects come through obstore), and further names of libraries that are there once."""
UNUSED_PYSPARK = (
    "ml", "mllib", "pandas", "pipelines", "streaming", "examples", "data", "python", "sbin", "R", "bin", "jars",
)  # fmt: skip
PROGRAMS = ("spark-submit", "spark-class", "load-spark-env.sh", "find-spark-home")
CLASS_PATH = "spark.jar"
EPOCH = 1_700_000_000
"""One whole second for every file: archives of classes compare the times of jars, and layers keep whole seconds."""


def main(arguments: list[str]) -> None:
    """Run one step."""
    match arguments:
        case ["packages", venv]:
            packages(Path(venv))
        case ["spark", venv, home, jars]:
            spark(Path(venv), Path(home), Path(jars))
        case _:
            sys.exit(__doc__)


def packages(venv: Path) -> None:
    """Leave in a virtual environment what is imported."""
    site = site_packages(venv)
    for directory in [path for path in site.rglob("tests") if path.is_dir()]:
        shutil.rmtree(directory, ignore_errors=True)
    for path in [site / name for name in UNUSED]:
        shutil.rmtree(path, ignore_errors=True)
    for pattern in UNUSED_ARROW:
        for path in (site / "pyarrow").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in [*site.rglob("*.pyi"), *site.rglob("*.a"), *site.rglob("*.pxd"), *site.rglob("*.h")]:
        path.unlink()
    own = OWN_CODE / site.relative_to(venv)
    (site / "compaction.pth").write_text(f"{own}\n")
    compile_all(site)


def spark(venv: Path, home: Path, names: Path) -> None:
    """Make SPARK_HOME of the installed PySpark."""
    package = site_packages(venv) / "pyspark"
    (home / "bin").mkdir(parents=True)
    for program in PROGRAMS:
        shutil.copy2(package / "bin" / program, home / "bin" / program)
    library = home / "jars" / "lib"
    library.mkdir(parents=True)
    kept = list(chosen(package / "jars", wanted(names)))
    for jar in kept:
        shutil.copy2(jar, library / jar.name)
    class_path(home / "jars" / CLASS_PATH, [jar.name for jar in kept])
    for pattern in UNUSED_PYSPARK:
        for path in package.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for directory in ("conf", "work-dir"):
        (home / directory).mkdir()
    (home / "work-dir").chmod(0o775)
    for path in [home, *home.rglob("*")]:
        os.utime(path, (EPOCH, EPOCH))


def wanted(names: Path) -> list[str]:
    """The artifacts that a list names: one a line, without versions; `#` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in names.read_text().splitlines())
    return [line for line in lines if line]


def chosen(jars: Path, artifacts: list[str]) -> Iterator[Path]:
    """The jar of each artifact, in order of name; of one that has a native part, the one for this processor. Ends the
    build when one is not there, or there twice.
    """
    native = f"linux-{ {'aarch64': 'aarch_64'}.get(platform.machine(), platform.machine()) }"
    for artifact in sorted(artifacts):
        form = re.compile(rf"{re.escape(artifact)}-\d[^-]*(-(?!linux|osx|windows).+)?(-{native})?\.jar")
        found = [jar for jar in jars.glob("*.jar") if form.fullmatch(jar.name)]
        if len(found) != 1:
            sys.exit(
                f"error: jars.txt names {artifact}, and PySpark has {[jar.name for jar in found] or 'no such jar'}"
            )
        yield found[0]


def class_path(jar: Path, names: list[str]) -> None:
    """A jar that stands for others: `jars/*` is expanded in the order of the directory, which differs from file system
    to file system, and an archive of classes holds for one order only.
    """
    text = "Class-Path: " + " ".join(f"lib/{name}" for name in names)
    # Lines of a manifest have at most 72 bytes with their end; continuations begin with a space.
    folded = text[:70] + "".join(f"\r\n {text[at : at + 69]}" for at in range(70, len(text), 69))
    with zipfile.ZipFile(jar, "w") as archive:
        entry = zipfile.ZipInfo("META-INF/MANIFEST.MF", date_time=(2023, 11, 14, 0, 0, 0))
        archive.writestr(entry, f"Manifest-Version: 1.0\r\n{folded}\r\n\r\n")


def compile_all(directory: Path) -> None:
    """Compile once, here: with a read-only root every start would do it again."""
    compileall.compile_dir(
        directory, quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


def site_packages(venv: Path) -> Path:
    """The one directory for packages of a virtual environment."""
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
