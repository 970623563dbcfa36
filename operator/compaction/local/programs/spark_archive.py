"""`python -m compaction.local.programs.spark_archive`: the archive of Spark's classes, once, at set-up.

What is in it: worker/spark/class_archive.

Appears complete or not at all. Whatever is missing for it is said, and is no failure: Spark starts without as well.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from compaction.local.processes.process import class_archives
from compaction.worker.errors import EngineStartError, JavaError
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import WRITING_SECONDS, SparkSettings, archive_path, find_java, options_to_write


def ensure_archive(directory: Path, *, report: Callable[[str], None] = print) -> Path:
    """The archive in `directory`, made when it is not there; about 15 CPU seconds.

    Raises:
        JavaError: there is no Java.
        EngineStartError: Spark does not start, or the JVM wrote no archive.
    """
    archive = archive_path(directory, find_java())
    if archive.is_file():
        return archive
    report("[spark] writing an archive of its classes, so that workers start faster")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=directory) as making:
        made = Path(making) / archive.name
        conf = {"spark.driver.extraJavaOptions": options_to_write(made)}
        settings = SparkSettings(
            conf=conf, log_file=Path(making) / "spark.log", scratch_parent=Path(making), stop_seconds=WRITING_SECONDS
        )
        with SparkEngine(settings):
            pass
        if not made.is_file():
            raise EngineStartError(f"the Java virtual machine wrote no class archive to {made}")
        made.replace(archive)
    return archive


def main() -> int:
    """Exit code 0: this only saves time."""
    try:
        print(f"[spark] ready: {ensure_archive(class_archives())}")
    except (JavaError, EngineStartError, OSError) as error:
        print(f"[spark] no class archive, workers start without: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
