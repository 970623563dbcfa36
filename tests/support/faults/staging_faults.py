"""A key-value store and an object storage that end the process, as far as the code can tell, at one of their calls."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

KV_CALLS = ("get", "set", "set_if", "delete", "set_many", "delete_many", "scan")
OBJECT_CALLS = ("put", "delete", "head", "get_range", "list")


class When(Enum):
    """Whether the call of the crash was made."""

    BEFORE = auto()
    AFTER = auto()


class Killed(BaseException):
    """The process ends here. No error of the program: nothing handles it."""


class Fate:
    """Notes the names of calls, and ends everything at the call number `at` (None: never) and at each one after it.

    With `lost`, the answer of that one call gets lost instead: it was carried out, and the error is raised.
    """

    def __init__(
        self, at: int | None = None, when: When = When.BEFORE, *, lost: Callable[[str], Exception] | None = None
    ) -> None:
        self.names: list[str] = []
        self.at = at
        self.when = when
        self.lost = lost

    @property
    def calls(self) -> list[str]:
        """The names of the calls, in order."""
        return self.names

    def guard(self, target: Any, names: tuple[str, ...]) -> Any:
        """A stand-in for `target` whose calls count."""
        return _Guarded(self, target, names)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that counts."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            number = len(self.names)
            self.names.append(name)
            if self.at is None or number < self.at or (self.lost is not None and number > self.at):
                return call(*args, **kwargs)
            if self.lost is not None:
                _carried_out(call(*args, **kwargs))
                raise self.lost(name)
            if number == self.at and self.when is When.AFTER:
                _carried_out(call(*args, **kwargs))
            raise Killed

        return guarded


def _carried_out(result: Any) -> None:
    """A scan has not begun before its first page."""
    if hasattr(result, "__next__"):
        next(iter(result), None)


class _Guarded:
    def __init__(self, fate: Fate, target: Any, names: tuple[str, ...]) -> None:
        self._fate, self._target, self._names = fate, target, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._fate.around(name, found) if name in self._names else found
