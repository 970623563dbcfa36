"""How a worker ended, in one sentence, from its exit code and the end of its log, or of what its submission printed.

A log ends with the last writer's lines: when the API server is away, with the stack traces of a client inside of the
JVM. What a person reads in a job's attempts is what the worker itself said, or else the last line that is no trace.
"""

from __future__ import annotations

import json
import re
import signal
from typing import Final

from compaction.api.text.safe import cut, printable, redacted
from compaction.worker.loop import EXIT_WORDS, LAST_WORDS

LONGEST: Final = 300
"""Characters of a log in a message."""
_READ: Final = 32_768
"""Characters of a log that are searched. A pod's status has 4096 bytes of it, Kubeflow's all that spark-submit said."""
_OF_A_TRACE: Final = re.compile(r"\s|Traceback \(")
"""Lines of a stack trace, of Java and of Python, are indented; the error itself is not."""
_OURS: Final = re.compile(r"\d{4}-\d\d-\d\dT\S+ \[\w+ *\] (?P<said>.*?)(?:\s+\[[\w.]+\].*)?")
"""A line of `kube.logging` in its form for people: time, level, what was said, logger, keys."""
_SPARKS_OWN: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?:WARN|INFO|DEBUG) ")
_CAUSED: Final = "Caused by: "
_THROWN: Final = re.compile(r'.*?Exception in thread "[^"]*" (?P<said>.+)')
_ANSWERED: Final = re.compile(r"[\w.$]+: (?:Failure executing: .*? Message: )(?P<said>.+?)(?:\. Received status: .*)?")
"""What the API server answered to Spark's client, which says beside it where it asked, and all of it once more."""
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
    Without credentials, as a status may be read by those who may not read the log.

    Empty only where there is nothing to say.
    """
    # A key and its end may be lines apart, so before there are lines.
    lines = [line.rstrip() for line in redacted(_end_of(output)).splitlines() if line.strip()]
    telling = [_said(line) for line in lines if not _OF_A_TRACE.match(line)] or [line.strip() for line in lines]
    own = [line for line in telling if line.startswith((_ERROR, LAST_WORDS))]
    loud = [line for line in telling if not _SPARKS_OWN.match(line)]
    chosen = next((found[-1] for found in (own, _thrown(telling), loud, telling) if found), "")
    return cut(printable(chosen.removeprefix(_CAUSED)), LONGEST)


def _thrown(lines: list[str]) -> list[str]:
    """The exception that ended a program, with its last cause where that says something else."""
    for number, line in enumerate(lines):
        if (thrown := _THROWN.fullmatch(line)) is not None:
            causes = [later.removeprefix(_CAUSED) for later in lines[number:] if later.startswith(_CAUSED)]
            first, cause = (_answered(said) for said in (thrown["said"], causes[-1] if causes else ""))
            return [first if cause in first else f"{first}; caused by {cause}"]
    return []


def _answered(said: str) -> str:
    found = _ANSWERED.fullmatch(said)
    return found["said"] if found is not None else said


def bounded(words: str) -> str:
    """What Kubernetes says of a pod, as it may stand in a message: one printable line, without credentials."""
    return cut(printable(redacted(words[:_READ])), LONGEST)


def _end_of(output: str) -> str:
    """The last lines, whole ones where there are several: half a line could be a value without its name."""
    if len(output) <= _READ:
        return output
    end = output[-_READ:]
    return end.partition("\n")[2] or end


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
