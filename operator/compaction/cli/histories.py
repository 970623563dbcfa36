"""Histories of operations in lines of JSON: fields and bytes of a line, and carrying all of them out in order."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Queue
from threading import Thread
from typing import IO, Any, ClassVar, Final

from compaction.api.text.printing import cut, printable
from compaction.cli.lazy import EXIT_DATA_ERROR, describe, report
from compaction.errors import CompactionError, RecordTextError

# Lines of JSON: one object each, read one by one.

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


# Bytes in lines of JSON: as text, or in base64 where they are none; and names in messages.

_SHOWN: Final = 80
"""Characters of a name in messages."""


def text_fields(name: str, data: bytes, suffix: str = "Base64") -> dict[str, str]:
    """Bytes under their name as text, or under `<name>Base64` when they are not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name + suffix: base64.b64encode(data).decode()}


def quoted(name: str) -> str:
    """A name as it was written, for messages: in quotes, only the beginning of a long one, and safe to print."""
    return f'"{printable(cut(name, _SHOWN))}"'


def bytes_of_base64(text: object, name: str) -> bytes:
    """RecordTextError: it is not base64."""
    if not isinstance(text, str):
        raise RecordTextError(f"{quoted(name)} is not a text: write base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RecordTextError(f"{quoted(name)} is not base64") from None


# The fields of an operation: what they may be, and clear words for what they are not.

BASE64: Final = "_base64"
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one operation, or of one item of it (`what`). Every method raises RecordTextError."""

    of_bytes: ClassVar[frozenset[str]] = frozenset()
    """Names of fields that may also be given as `<name>_base64`."""

    given: Mapping[str, Any]
    what: str

    def check(self, known: Iterable[str]) -> None:
        """No other fields than these; each of bytes also as `<name>_base64`."""
        names = set(known)
        for name in self.given:
            if name not in names and name.removesuffix(BASE64) not in names & self.of_bytes:
                raise RecordTextError(
                    f"{self.what} has no field {quoted(name)}: it has {', '.join(sorted(names)) or 'none'}"
                )

    def has(self, name: str) -> bool:
        """Return whether there is such a field that is not null."""
        return self.given.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without a default it must be there."""
        found = self.given.get(name, default)
        if not isinstance(found, str):
            raise RecordTextError(f'{self.what} needs "{name}", a text')
        try:
            found.encode()
        except UnicodeEncodeError:
            raise RecordTextError(f'"{name}" of {self.what} is not Unicode text') from None
        return found

    def flag(self, name: str) -> bool:
        """true or false; false when it is not there."""
        found = self.given.get(name, False)
        if not isinstance(found, bool):
            raise RecordTextError(f'"{name}" of {self.what} is true or false')
        return found

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A whole number; without a default it must be there."""
        found = self.given.get(name, default)
        if type(found) is not int or not least <= found <= most:
            raise RecordTextError(f'"{name}" of {self.what} is a whole number of at least {least}')
        return found

    def seconds(self, name: str, default: float) -> float:
        """A length of time."""
        found = self.given.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e15:
            raise RecordTextError(f'"{name}" of {self.what} is a number of seconds')
        return float(found)

    def texts(self, name: str) -> dict[str, str]:
        """An object of texts; empty when it is not there."""
        found = self.given.get(name, {})
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise RecordTextError(f'"{name}" of {self.what} is an object of texts')
        return found

    def data(self, name: str, default: bytes | None = None) -> bytes:
        """Bytes as text, or under `<name>_base64` in base64; without a default they must be there."""
        if name + BASE64 in self.given:
            if name in self.given:
                raise RecordTextError(f'{self.what} has "{name}" twice: as text and in base64')
            return bytes_of_base64(self.given[name + BASE64], name + BASE64)
        if default is not None and name not in self.given:
            return default
        return self.text(name).encode()

    def many(self, name: str) -> list[bytes]:
        """A list of bytes, each as in `data`; empty when it is not there."""
        if name + BASE64 in self.given:
            return [bytes_of_base64(item, name + BASE64) for item in self.items(name + BASE64)]
        return [Fields({name: item}, self.what).data(name) for item in self.items(name)]

    def objects(self, name: str) -> list[Mapping[str, Any]]:
        """A list of objects; empty when it is not there."""
        found = self.items(name)
        if not all(isinstance(item, dict) for item in found):
            raise RecordTextError(f'"{name}" of {self.what} is a list of objects')
        return found

    def items(self, name: str) -> list[Any]:
        """A list; empty when it is not there."""
        found = self.given.get(name, _NOTHING)
        if found is _NOTHING:
            return []
        if not isinstance(found, list):
            raise RecordTextError(f'"{name}" of {self.what} is a list')
        return found


# Carrying out a history: each line in order, a line of result for each when it is done.
#
# An acknowledged operation is done, whatever happens to the process: a result is flushed before the next line is read.

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
    """The rules by which the lines of one command are carried out.

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
