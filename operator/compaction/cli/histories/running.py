"""Carrying out a history: each line in order, a line of result for each when it is done.

What was acknowledged is done, whatever happens to the process: a result is flushed before the next line is read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Queue
from threading import Thread
from typing import IO, Any, Final

from compaction.cli.errors import EXIT_DATA_ERROR, describe, report
from compaction.cli.histories.lines import numbered_lines, object_of
from compaction.errors import CompactionError, RecordTextError

EXIT_USAGE: Final = 2
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Later:
    """A result that comes when `future` is done: `result` of what it brings."""

    future: Future[Any]
    result: Callable[[Any], Result]

    def wait(self) -> Result:
        """Raises what the future raises."""
        return self.result(self.future.result(PATIENCE))


PATIENCE: Final = 600.0
"""Seconds after which a future counts as lost: where a disk never answers, it would be waited for without an end."""


@dataclass(frozen=True, slots=True)
class History:
    """How the lines of one command are carried out.

    `name_of`: the operation of a line; `carry_out`: its result, at once or later. Both raise RecordTextError for what
    is no operation; other errors of `carry_out` are results. `unusable`: errors after which the exit code is 1. `most`:
    bytes of a line. `flows`: operations that need not wait for the results of those before them.
    """

    name_of: Callable[[Mapping[str, Any]], str]
    carry_out: Callable[[str, Mapping[str, Any]], Result | Later]
    unusable: tuple[type[Exception], ...]
    most: int
    flows: frozenset[str] = frozenset()

    def run(self, lines: IO[bytes], *, name: str, stop_on_error: bool, in_flight: int = 1) -> int:
        """Carry out all lines of the file called `name`; the exit code.

        Results are printed in the order of the lines. Up to `in_flight` of them may come later than the next line, if
        that is of an operation that flows.
        """
        with Results(self.unusable, in_flight=in_flight) as results:
            for number, raw in numbered_lines(lines, most=self.most):
                try:
                    results.put(*self._begin(number, raw, results))
                except RecordTextError as error:
                    results.finish()
                    report(f"{name}: line {number}: {error}")
                    return EXIT_USAGE
                if stop_on_error and results.failed:
                    break
            results.finish()
            return EXIT_DATA_ERROR if results.unusable or (stop_on_error and results.failed) else 0

    def _begin(self, number: int, raw: bytes, results: Results) -> tuple[dict[str, Any], Result | Later | Exception]:
        """The head of the result of a line, and its outcome. Raises RecordTextError: it is no operation."""
        given = object_of(raw, most=self.most)
        name = self.name_of(given)
        head: dict[str, Any] = {"line": number, "op": name}
        if name not in self.flows:
            results.settle()
        try:
            return head, self.carry_out(name, given)
        except RecordTextError:
            raise
        except (CompactionError, OSError) as error:
            return head, error


class Results:
    """Prints results in order, each as soon as it is known; with more than one in flight, from a thread of its own."""

    def __init__(self, unusable: tuple[type[Exception], ...], *, in_flight: int) -> None:
        self.failed = False
        self.unusable = False
        self._errors = unusable
        self._queue: Queue[tuple[dict[str, Any], Result | Later | Exception] | None] = Queue(max(0, in_flight - 1))
        self._broken: BaseException | None = None
        self._thread = Thread(target=self._run, name="results", daemon=True) if in_flight > 1 else None

    def __enter__(self) -> Results:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever ended the history: its process ends, and so does a thread that waits for a result.
        self._thread = None

    def put(self, head: dict[str, Any], outcome: Result | Later | Exception) -> None:
        """The next result; waits while too many are in flight. OSError: nothing can be printed any more."""
        if self._thread is None:
            self._print(head, outcome)
        elif self._broken is not None:
            raise self._broken
        else:
            self._queue.put((head, outcome))

    def settle(self) -> None:
        """All that were put are printed afterwards."""
        if self._thread is not None:
            self._queue.join()

    def finish(self) -> None:
        """All are printed afterwards. OSError as `put`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()
        if self._broken is not None:
            raise self._broken

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if self._broken is None:
                    self._print(*item)
            except OSError as error:
                self._broken = error
            finally:
                self._queue.task_done()

    def _print(self, head: dict[str, Any], outcome: Result | Later | Exception) -> None:
        failure: Exception | None = None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            done = {"ok": True, **(outcome.wait() if isinstance(outcome, Later) else outcome)}
        except (CompactionError, OSError) as error:
            failure = error
            done = {"ok": False, "error": type(error).__name__, "message": describe(error)}
        self.failed |= failure is not None
        self.unusable |= isinstance(failure, self._errors)
        sys.stdout.write(json.dumps(head | done) + "\n")
        sys.stdout.flush()
