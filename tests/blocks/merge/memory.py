"""Runs merges, each in a process of its own, and says how much memory each took: `blocks.merge.memory`.

A line of standard input is one merge, a JSON list: bytes allowed, the sort key with commas, path of the output, paths
of the inputs, which are read, not mapped. The answer is a line {"base", "peak", "passes", "read", "rows"}: anonymous
resident memory in bytes, before the merge and at most in it. The process that reads the lines only imports and forks:
a merge finds the memory of a process that has just begun.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow.parquet as pq

from compaction.blocks.merge.footers import MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge

_PAGE = os.sysconf("SC_PAGE_SIZE")


def anonymous() -> int:
    """Resident memory of this process that is in no file."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * _PAGE


class Watch(threading.Thread):
    """Looks again and again. What it misses makes the peak smaller, never larger."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.002):
            self.peak = max(self.peak, anonymous())


def opened(path: str) -> BinaryIO:
    return open(path, "rb")


def measured(limit: int, key: str, output: str, *sources: str) -> dict[str, object]:
    """See the module."""
    inputs = [MergeInput(name=path, open=partial(opened, path)) for path in sources]
    base, watch = anonymous(), Watch()
    watch.start()
    result = merge(inputs, output, MergeSettings(sort_key=tuple(key.split(",")), memory_bytes=limit))
    watch.over.set()
    watch.join()
    said = {"base": base, "peak": watch.peak, "passes": result.passes, "read": str(result.read)}
    return {**said, "rows": pq.read_metadata(output).num_rows}


def main() -> None:
    """Nothing starts a thread before the fork."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            print(json.dumps(measured(*json.loads(line))), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"a merge ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
