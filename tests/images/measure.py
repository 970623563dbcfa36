"""How large the images are and how long they take to start: `PYTHONPATH=tests python -m images.measure [ROUNDS]`.

The figures of docs/images.md; needs root. With and without the archive of classes in turn, so that both meet the same
neighbours; CPU seconds are those of all processes of the container.
"""

from __future__ import annotations

import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from images.containers import Pod, Unpacked, unpack
from tools.images.build import Image, ensure_images

START = """
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings
with SparkEngine(SparkSettings(master="local[2]")) as engine:
    engine.submit(str.upper, "done", tag="one").result()
"""
PLACES = ("/tmp", "/opt/spark/work-dir")


def seconds(image: Unpacked, *words: str, pod: Pod) -> tuple[float, float]:
    """Wall and CPU seconds of a container from its start to its end."""
    started = time.monotonic()
    process = subprocess.Popen(image.command(*words, pod=pod), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said.decode()
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime


def compressed(archive: Path) -> int:
    """Bytes of the archive as a registry would keep it, roughly: gzip, level 6."""
    with archive.open("rb") as file, tempfile.TemporaryFile() as out:
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6) as packed:
            while block := file.read(1 << 20):
                packed.write(block)
        return out.tell()


def main(rounds: int) -> None:
    """Print it all."""
    for built in ensure_images(report=print):
        print(
            f"{built.tag}: {built.bytes / 1e6:.0f} MB, {compressed(built.archive) / 1e6:.0f} MB compressed", flush=True
        )
        with tempfile.TemporaryDirectory() as directory:
            image = unpack(built.archive, Path(directory))
            words = {"compactor --version": ["--version"]}
            pods = {"compactor --version": Pod(writable=PLACES[:1])}
            if built.image is Image.WORKER:
                words = {"compactor --version": ["compactor", "--version"]}
                for name, archive in (("Spark", "/opt/spark/classes.jsa"), ("Spark without the archive", "")):
                    words[name] = ["python", "-W", "ignore", "-c", START]
                    pods[name] = Pod({"COMPACTION_CLASS_ARCHIVE": archive, "SPARK_LOCAL_IP": "127.0.0.1"}, {}, PLACES)
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in words}
            for _ in range(rounds):
                for name in words:
                    taken[name].append(seconds(image, *words[name], pod=pods[name]))
            for name, times in taken.items():
                wall, cpu = (statistics.median(item[at] for item in times) for at in (0, 1))
                print(f"  {name}: {wall:.2f} s, {cpu:.2f} s CPU (median of {rounds})", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
