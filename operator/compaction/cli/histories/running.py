"""Carrying out a history: each line in order, a line of result for each when it is done.

What was acknowledged is done, whatever happens to the process: a result is flushed before the next line is read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

from compaction.cli.errors import EXIT_DATA_ERROR, describe, report
from compaction.cli.histories.lines import numbered_lines, object_of
from compaction.exceptions import CompactionError, RecordTextError

EXIT_USAGE: Final = 2
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """How the lines of one command are carried out.

    `name_of`: the operation of a line; `carry_out`: its result. Both raise RecordTextError for what is no operation;
    other errors of `carry_out` are results. `unusable`: errors after which the exit code is 1. `most`: bytes of a line.
    """

    name_of: Callable[[Mapping[str, Any]], str]
    carry_out: Callable[[str, Mapping[str, Any]], Result]
    unusable: tuple[type[Exception], ...]
    most: int

    def run(self, lines: IO[bytes], *, name: str, stop_on_error: bool) -> int:
        """Carry out all lines of the file called `name`; the exit code."""
        code = 0
        for number, raw in numbered_lines(lines, most=self.most):
            try:
                result, failure = self._result(number, raw)
            except RecordTextError as error:
                report(f"{name}: line {number}: {error}")
                return EXIT_USAGE
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()
            if failure is not None and (stop_on_error or isinstance(failure, self.unusable)):
                code = EXIT_DATA_ERROR
            if failure is not None and stop_on_error:
                break
        return code

    def _result(self, number: int, raw: bytes) -> tuple[dict[str, Any], Exception | None]:
        """The result of a line, and what made it fail. Raises RecordTextError: it is no operation."""
        given = object_of(raw, most=self.most)
        name = self.name_of(given)
        head: dict[str, Any] = {"line": number, "op": name}
        try:
            return {**head, "ok": True, **self.carry_out(name, given)}, None
        except RecordTextError:
            raise
        except (CompactionError, OSError) as error:
            return {**head, "ok": False, "error": type(error).__name__, "message": describe(error)}, error
