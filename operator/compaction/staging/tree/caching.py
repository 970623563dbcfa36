"""What was read last, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentlyUsed(Generic[T]):
    """Values by their name; the least recently used go first. Safe for threads."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: so much is kept at most, by the sizes that `put` is given."""
        self._most = nbytes
        self._used = 0
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> T | None:
        """The value of a name, None when it is not kept."""
        with self._lock:
            found = self._kept.get(name)
            if found is None:
                return None
            self._kept.move_to_end(name)
            return found[0]

    def put(self, name: str, value: T, nbytes: int) -> bool:
        """Keep a value of so many bytes; False when it is larger than all there is room for, so not kept."""
        if nbytes > self._most:
            return False
        with self._lock:
            self._used += nbytes - self._kept.pop(name, (value, 0))[1]
            self._kept[name] = value, nbytes
            while self._used > self._most:
                _, (_, freed) = self._kept.popitem(last=False)
                self._used -= freed
        return True

    def drop(self, name: str) -> None:
        """Do not keep this name any longer."""
        with self._lock:
            if (found := self._kept.pop(name, None)) is not None:
                self._used -= found[1]
