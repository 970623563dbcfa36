"""The RocksDB that Spark ships, in a Java process of its own: another implementation reads and writes our tables."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark

from compaction.worker.spark.settings import find_java

SOURCE = Path(__file__).with_name("RocksDbTables.java")


class RocksDbTables:
    """Commands to the process; RuntimeError with RocksDB's own words when one fails."""

    def __init__(self, asked: IO[str], answered: IO[str]) -> None:
        self._asked, self._answered = asked, answered

    def verify(self, path: Path) -> int:
        """All checksums; the number of records by the properties."""
        return self._run("verify", path)

    def read(self, path: Path) -> int:
        """Iterate over all records; how many."""
        return self._run("read", path)

    def copy(self, path: Path, target: Path) -> int:
        """Iterate over all records and write them into another table; how many."""
        return self._run("copy", path, target)

    def count_from(self, path: Path, key: bytes) -> int:
        """How many records there are from a key on."""
        return self._run("seek", path, key.hex())

    def records(self, path: Path, scratch: Path) -> list[tuple[bytes, bytes]]:
        """All records."""
        count = self._run("dump", path, scratch)
        data, at, parts = scratch.read_bytes(), 0, []
        while at < len(data):
            (size,) = struct.unpack_from(">I", data, at)
            parts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        found = list(zip(parts[::2], parts[1::2], strict=True))
        assert len(found) == count
        return found

    def _run(self, *words: object) -> int:
        self._asked.write("\t".join(map(str, words)) + "\n")
        self._asked.flush()
        outcome, _, text = self._answered.readline().strip().partition(" ")
        if outcome != "ok":
            raise RuntimeError(text)
        return int(text)


@contextmanager
def rocksdb_tables() -> Iterator[RocksDbTables]:
    """The process, for as long as the context lasts. Its start takes about two seconds."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("rocksdbjni-*.jar")
    command = [str(find_java().home / "bin" / "java"), "-cp", str(jar), str(SOURCE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield RocksDbTables(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait(30)
