"""A process that dies at one system call: every mutating call of the store counted, one of them the last.

A store of files makes all its changes through one module of small functions (segment logs through
`compaction.segments.directory.fs`); here each of them is wrapped. After the death every further call dies as
well, so no `finally` tidies up: what is on the disk is what a killed process leaves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any, Literal
from unittest import mock

from compaction.segments.directory import fs
from support.timing import one_of_each

MUTATING = (
    "create", "write", "write_at", "set_owner", "set_mode", "sync", "sync_data", "make_directory",
    "remove_directory", "link", "symlink", "rename", "unlink",
)  # fmt: skip
When = Literal["before", "after", "during"]
WHENS: tuple[When, ...] = ("before", "after", "during")


class SuddenDeath(BaseException):
    """Not an Exception: nothing may catch it."""


@dataclass
class DyingFilesystem(AbstractContextManager["DyingFilesystem"]):
    """Kills (or fails, with `error`) at mutating call number `at` (0-based), before, after, or half-way through a
    write.

    Without `at` it only counts: `calls` lists what was called. `lasting`: an error that does not go away. `module`:
    what the store writes through.
    """

    at: int | None = None
    when: When = "before"
    error: OSError | None = None
    lasting: bool = False
    module: ModuleType = fs
    calls: list[str] = field(default_factory=list)
    dead: bool = False
    _original: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __enter__(self) -> DyingFilesystem:
        for name in MUTATING:
            if hasattr(self.module, name):
                self._original[name] = getattr(self.module, name)
                setattr(self.module, name, self._wrap(name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, function in self._original.items():
            setattr(self.module, name, function)

    def _wrap(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise self._end()
            number = len(self.calls)
            self.calls.append(
                " ".join([name, *(os.path.basename(os.fspath(a)) for a in args if isinstance(a, os.PathLike))])
            )
            if number != self.at:
                return self._original[name](*args, **kwargs)
            self.dead = self.error is None or self.lasting
            if self.when == "after":
                # A call may fail on its own (nothing to unlink): the death comes all the same.
                with suppress(OSError):
                    self._original[name](*args, **kwargs)
            elif self.when == "during" and name == "write":
                self._half(*args)
            elif self.when == "during" and name == "write_at":
                fd, data, offset = args
                os.pwrite(fd, data[: len(data) // 2], offset)
            raise self._end()

        return call

    def _end(self) -> BaseException:
        return SuddenDeath() if self.error is None else type(self.error)(*self.error.args)

    @staticmethod
    def _half(fd: int, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        os.write(fd, data[: len(data) // 2])


def steps(calls: Sequence[str]) -> list[tuple[str, str]]:
    """The step of the protocol that each of the counted calls is: what is called on which sort of file, and the change
    of a name that came last. The same step for another group is the same.
    """
    result, last = [], ""
    for call in calls:
        what = re.sub(r"\d+(-\d+)*", "#", call)
        result.append((what, last))
        if what.startswith(("rename", "link", "symlink")):
            last = what
    return result


def points(calls: Sequence[str]) -> list[int]:
    """Numbers of the calls at which something happens: of all in a deep run, of each step once in a short one."""
    each = steps(calls)
    return one_of_each(range(len(calls)), lambda number: each[number])


def deaths(calls: Sequence[str], whens: Sequence[When] = WHENS) -> list[tuple[int, When, str]]:
    """(call number, moment, name) of the deaths in a run that makes these calls; only a write can be half done."""
    return [
        (number, when, calls[number])
        for number in points(calls)
        for when in whens
        if when != "during" or calls[number].startswith("write")
    ]


# Something happens between two system calls: before the n-th one, whichever that is.

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
