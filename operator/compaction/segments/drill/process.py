"""An attempt as the drill holds it in its hands: start, stop, wake, listen, and make sure that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.errors import DrillError
from compaction.local.processes.process import GUARD
from compaction.segments.drill.attempt import encode
from compaction.segments.drill.messages import Line, LineKind, Order

ANSWER_SECONDS: Final = 60.0
"""How long an attempt may take for any one step before the drill gives up."""
_TAIL_LINES: Final = 5


@dataclass(slots=True)
class DrillAttempt:
    """A running attempt. `errors` is the file its stderr goes to."""

    order: Order
    process: asyncio.subprocess.Process
    errors: Path

    async def hear(self, *expected: LineKind) -> Line:
        """The next line that is one of `expected`; earlier ones of other kinds are skipped.

        Raises:
            DrillError: the attempt ended, or said nothing for too long.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    line = await self._line()
                    if line.said in expected:
                        return line
        except TimeoutError as error:
            raise DrillError(f"{self.order.name} said nothing for {ANSWER_SECONDS:.0f} s") from error

    async def _line(self) -> Line:
        assert self.process.stdout is not None
        text = await self.process.stdout.readline()
        if not text:
            code = await self.process.wait()
            raise DrillError(f"{self.order.name} ended early with code {code}: {self._last_words()}")
        try:
            return Line.parse(json.loads(text))
        except (ValueError, KeyError) as error:
            raise DrillError(f"{self.order.name} printed an unknown line: {text!r}") from error

    def _last_words(self) -> str:
        lines = self.errors.read_text(errors="replace").splitlines()
        return " / ".join(lines[-_TAIL_LINES:]) or "no message"

    async def stop(self) -> None:
        """SIGSTOP; returns when the kernel says that it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Answer its question at the commit point; a stopped attempt reads it when it wakes."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"commit\n")

    def wake(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """Make it end, whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def start(order: Order, errors: Path) -> AsyncIterator[DrillAttempt]:
    """An attempt that cannot outlive the block, nor this process."""
    guard = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid())]
    with errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *guard,
            *(sys.executable, "-m", "compaction.segments.drill.attempt", encode(order)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            # A terminal's Ctrl-C is for the drill, which then ends its attempts itself.
            start_new_session=True,
        )
    attempt = DrillAttempt(order, process, errors)
    try:
        yield attempt
    finally:
        await attempt.end()
