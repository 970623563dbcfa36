"""A client: finds the leader, and asks again until it is answered or its time is over. One thread at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, TypeVar

from replicated_kv.errors import CommandError, KeyValueError, ProtocolError, Reason, RefusedError, UnavailableError
from replicated_kv.machine import Command
from replicated_kv.members import Members
from replicated_kv.messages import (
    MAX_FRAME_BYTES,
    MAX_PARTS,
    AskStatus,
    Connection,
    Message,
    Page,
    Parts,
    Read,
    Scan,
    Status,
    Value,
    Write,
    Written,
)

ANSWER_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.1
PAGE: Final = 1000
MOST_WRITTEN: Final = MAX_FRAME_BYTES // 2
"""Bytes in one write: half a frame, so that the message fits as well."""
A = TypeVar("A", bound=Message)


class Client:
    """`timeout`: seconds for which one call is repeated. A context manager: leaving it closes the connections.

    A write that was repeated may be done twice, one right after the other: which makes no difference to a key that one
    client alone writes.
    """

    def __init__(self, members: Members, *, timeout: float = 60.0) -> None:
        self.members = members
        self.timeout = timeout
        self._leader = next(iter(members))
        self._connections: dict[str, Connection] = {}

    def put(self, key: bytes, value: bytes) -> int:
        """See `write`."""
        return self.write([Command.put(key, value)])

    def delete(self, key: bytes) -> int:
        """See `write`."""
        return self.write([Command.delete(key)])

    def write(self, commands: Sequence[Command]) -> int:
        """Returns the index of the last command's entry, once all of them survive the loss of a minority of members.

        CommandError: one is not valid, or they do not fit into a frame. UnavailableError: they may have been done or
        not, or some of them.
        """
        parts = [command.encode() for command in commands]
        size = sum(map(len, parts))
        if not 0 < len(parts) < MAX_PARTS or size > MOST_WRITTEN:
            raise CommandError(
                f"a write has 1..{MAX_PARTS - 1} commands of {MOST_WRITTEN} bytes, not {len(parts)} of {size}"
            )
        answer, _ = self._ask_leader(Write(), parts, Written)
        return answer.index

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, read from the leader's log; None when there is no such key. UnavailableError."""
        _, parts = self._ask_leader(Read(), [key], Value)
        return parts[0] if parts else None

    def status(self, name: str) -> Status:
        """Of one member. OSError, KeyValueError: it does not answer now."""
        return self.ask(name, AskStatus(), [], Status)[0]

    def wait_applied(self, name: str, index: int) -> Status:
        """Until a member has applied everything up to `index`. UnavailableError: it has not in time."""
        until = time.monotonic() + self.timeout
        why = ""
        while time.monotonic() < until:
            try:
                status = self.status(name)
                if status.applied >= index:
                    return status
                why = f"it is at entry {status.applied}"
            except (OSError, KeyValueError) as error:
                why = str(error)
            time.sleep(PAUSE_SECONDS)
        raise UnavailableError(f"{name} has not applied entry {index} in {self.timeout:.0f} s: {why}")

    def scan(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """All keys of one member in their order, each value read from its log. OSError, KeyValueError."""
        after = b""
        while True:
            _, parts = self.ask(name, Scan(limit=PAGE), [after], Page)
            if not parts:
                return
            yield from zip(parts[::2], parts[1::2], strict=True)
            after = parts[-2]

    def ask(self, name: str, message: Message, parts: Parts, answer: type[A]) -> tuple[A, list[bytes]]:
        """One question to one member. RefusedError: its error. ProtocolError, OSError."""
        connection = self._connections.get(name)
        if connection is None:
            connection = self._connections[name] = Connection.open(self.members[name], timeout=ANSWER_SECONDS)
        try:
            return connection.call(message, parts, answer=answer)
        except (OSError, ProtocolError):
            self._connections.pop(name).close()
            raise

    def _ask_leader(self, message: Message, parts: Parts, answer: type[A]) -> tuple[A, list[bytes]]:
        until = time.monotonic() + self.timeout
        why: Exception | None = None
        while time.monotonic() < until:
            name = self._leader
            try:
                return self.ask(name, message, parts, answer)
            except RefusedError as error:
                if error.reason is Reason.INVALID:
                    raise
                why = error
                if error.leader in self.members and error.leader != name:
                    self._leader = error.leader
                    continue
            except (OSError, ProtocolError) as error:
                why = error
                self._leader = self._next(name)
            time.sleep(PAUSE_SECONDS)
        raise UnavailableError(f"no leader has answered in {self.timeout:.0f} s: {why}")

    def _next(self, name: str) -> str:
        names = list(self.members)
        return names[(names.index(name) + 1) % len(names)]

    def close(self) -> None:
        for connection in self._connections.values():
            with suppress(OSError):
                connection.close()
        self._connections.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
