"""The files by which a Ra server shows whether it runs: `meta.dets` and a write-ahead log in its data directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

META: Final = "meta.dets"
WAL: Final = "0000000000000001.wal"


def dets_header(closed: int) -> bytes:
    """As DETS begins a file: free lists, cookie, closed, type `set`, version 9; zeros in place of the table."""
    words = (5453, 0x00ABCDEF, closed, 1, 9)
    return b"".join(word.to_bytes(4, "big") for word in words) + bytes(5000)


def stopped(data: Path, *, wal: bool = True) -> Path:
    """The server was stopped cleanly. Returns `meta.dets`."""
    data.mkdir(parents=True, exist_ok=True)
    (data / META).write_bytes(dets_header(1))
    if wal:
        (data / WAL).write_bytes(b"RAWA\x01")
    return data / META


def killed(data: Path) -> Path:
    """The server was killed, or runs on a machine that cannot be seen. Returns `meta.dets`."""
    meta = stopped(data)
    meta.write_bytes(dets_header(0))
    return meta


@contextmanager
def running(data: Path, *, idle: bool = False) -> Iterator[Path]:
    """The server runs; an idle one, which has saved its table since, leaves the mark of a clean stop."""
    meta = stopped(data) if idle else killed(data)
    with meta.open("r+b"):
        yield meta
