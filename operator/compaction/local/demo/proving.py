"""A thread that reads and compares beside what the demo does, until that is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

JOIN_SECONDS: Final = 60.0


class Proving(Protocol):
    """Each demo has its own. `run` returns soon after `stopped` is set."""

    stopped: threading.Event

    def run(self) -> None: ...


@contextmanager
def proving(prover: Proving) -> Iterator[None]:
    """It reads in a thread of its own until the block is left."""
    thread = threading.Thread(target=prover.run, name="prover", daemon=True)
    thread.start()
    try:
        yield
    finally:
        prover.stopped.set()
        thread.join(JOIN_SECONDS)
