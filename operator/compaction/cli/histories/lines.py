"""Lines of JSON: one object each, read one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, Final

from compaction.errors import RecordTextError

STDIN: Final = "-"
STDIN_NAME: Final = "standard input"


def object_of(raw: bytes, *, most: int) -> dict[str, Any]:
    """The JSON object of a line. RecordTextError: it is none, names a field twice, or has more than `most` bytes."""
    if len(raw) > most:
        raise RecordTextError(f"the line is longer than {most} bytes")
    try:
        found = json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        words = error.msg if isinstance(error, json.JSONDecodeError) else "it is not UTF-8, or nested too deeply"
        raise RecordTextError(f"the line is not JSON ({words}): write one object per line") from None
    if not isinstance(found, dict):
        raise RecordTextError("the line is no JSON object: write one object per line")
    return found


def numbered_lines(file: IO[bytes], *, most: int) -> Iterator[tuple[int, bytes]]:
    """Numbered from 1; empty lines are passed over. Of a line with more than `most` bytes, so many and one more."""
    number = 0
    while raw := file.readline(most + 1):
        number += 1
        if raw.strip():
            yield number, raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RecordTextError("the line names a field twice")
    return found
