"""Something happens between two system calls: before the n-th one, whichever that is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from compaction.segments.directory import fs

READS = ("open", "stat", "lstat", "fstat", "scandir", "listdir", "readlink", "pread")
WRITES = ("create", "write", "sync", "sync_directory", "link", "symlink", "rename", "unlink")


@dataclass(slots=True)
class Calls:
    """The calls that there were (those of the event itself not counted), and the one that the event came before."""

    names: list[str] = field(default_factory=list)
    struck: str = ""


@contextmanager
def before_call(kind: str, number: int, event: Callable[[], object]) -> Iterator[Calls]:
    """Run `event` before call `number` (from 0): of the calls that look ("read"), or of those that change a log
    ("write").
    """
    counted, running = Calls(), False

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal running
            if not running:
                paths = (os.path.basename(a) for a in args if isinstance(a, os.PathLike))
                counted.names.append(" ".join([function.__name__, *paths]))
                if len(counted.names) - 1 == number:
                    running = True
                    counted.struck = counted.names[-1]
                    try:
                        event()
                    finally:
                        running = False
            return function(*args, **kwargs)

        return call

    module, names = (os, READS) if kind == "read" else (fs, WRITES)
    wrapped: dict[str, Any] = {name: wrap(getattr(module, name)) for name in names}
    with mock.patch.multiple(module, **wrapped):
        yield counted
