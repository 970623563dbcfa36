"""Very many files in a log's directory, and what a look at it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compaction.segments.generate import generate_log

ALLOWED_KIB = 4096
_LOOK = """
import resource, sys
from pathlib import Path
from compaction.segments.scan.find import LogFinder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(found,) = LogFinder(Path(sys.argv[1]), include=('**',), exclude=()).find()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def memory_of_a_look(root: Path, *, files: int) -> int:
    """KiB by which a fresh process grows while it finds the one log below `root`, beside whose segments so many empty
    files lie.
    """
    log = root / "log"
    generate_log(log, segments=4, entries_per_segment=8, payload_bytes=16, sync=False)
    for number in range(files):
        os.close(os.open(log / f"{number:07}", os.O_CREAT | os.O_WRONLY))
    answer = subprocess.run([sys.executable, "-c", _LOOK, str(root)], capture_output=True, check=True)
    return int(answer.stdout)
