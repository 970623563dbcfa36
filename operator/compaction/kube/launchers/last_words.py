"""How a worker ended, in one sentence, from its exit code and the end of its log.

A log ends with the last writer's lines: when the API server is away, with the stack traces of a client inside of the
JVM. What a person reads in a job's attempts is what the worker itself said, or else the last line that is no trace.
"""

from __future__ import annotations

import json
import re
import signal
from typing import Final

from compaction.api.text.safe import cut, printable
from compaction.rewrite.worker.loop import EXIT_WORDS, LAST_WORDS

LONGEST: Final = 300
"""Characters of a log in a message."""
_OF_A_TRACE: Final = re.compile(r"\s|Traceback \(")
"""Lines of a stack trace, of Java and of Python, are indented; the error itself is not."""
_OURS: Final = re.compile(r"\d{4}-\d\d-\d\dT\S+ \[\w+ *\] (?P<said>.*?)(?:\s+\[[\w.]+\].*)?")
"""A line of `kube.logging` in its form for people: time, level, what was said, logger, keys."""
_SPARKS_OWN: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?:WARN|INFO|DEBUG) ")
_CAUSED: Final = "Caused by: "
_ERROR: Final = "error: "


def ending_of(code: int | None, output: str) -> str:
    """What is said of a worker that ended with this exit code (negative: a signal; None: not known) and this output."""
    if code is None:
        words = last_words(output)
        return f"its process is gone; its log ends with: {words}" if words else ""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    words = EXIT_WORDS.get(code) or last_words(output)
    return f"exit code {code}: {words}" if words else f"exit code {code}"


def last_words(output: str) -> str:
    """One printable line of at most `LONGEST` characters: the worker's own last words, or the last line that says much.

    Empty only where there is nothing to say.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    telling = [_said(line) for line in lines if not _OF_A_TRACE.match(line)] or [line.strip() for line in lines]
    own = [line for line in telling if line.startswith((_ERROR, LAST_WORDS))]
    loud = [line for line in telling if not _SPARKS_OWN.match(line)]
    chosen = next((found[-1] for found in (own, loud, telling) if found), "")
    return cut(printable(chosen.removeprefix(_CAUSED)), LONGEST)


def _said(line: str) -> str:
    """What a line of ours says, without time, level and keys; any other line as it is."""
    if line.startswith("{"):
        try:
            said = json.loads(line).get("message")
        except (ValueError, RecursionError):
            return line
        return said if isinstance(said, str) and said else line
    match = _OURS.fullmatch(line)
    return match["said"] if match is not None else line
