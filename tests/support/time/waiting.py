"""Waiting for something to become true. The limit is how long a broken build may hang, not a measure of speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE_SECONDS = 180.0


def eventually(
    look: Callable[[], Value | None], what: str, *, timeout: float = PATIENCE_SECONDS, pause: float = 0.2
) -> Value:
    """The first truthy value of `look`; AssertionError with `what` and the last value when none came."""
    deadline = time.monotonic() + timeout
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout:.0f} s in vain for {what}; last seen: {value!r}")
        time.sleep(pause)
