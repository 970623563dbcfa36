"""Long commands with progress: each line they print is parsed, and their last lines explain a failure."""

from __future__ import annotations

import re
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from compaction.local.errors import ImageError

Report = Callable[[str], None]

TAIL_LINES: Final = 60
REPORT_SECONDS: Final = 15.0


def run(
    command: Sequence[str], *, what: str, report: Report, step: str = "$^", environment: Mapping[str, str] | None = None
) -> str:
    """Run to the end and return the last lines of output. A line is reported when it begins as the expression `step`
    says, or 15 s after the last one.

    Raises:
        ImageError: it failed; has its last lines.
    """
    started = told = time.monotonic()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip())
                now = time.monotonic()
                if re.match(step, line) or now - told >= REPORT_SECONDS:
                    told = now
                    report(f"{what}: {now - started:.0f} s, {line.strip()[:100]}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise ImageError(f"{what} failed with exit code {process.returncode}:\n" + "\n".join(tail))
    return "\n".join(tail)
