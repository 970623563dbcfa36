"""A member: its replica behind a TCP port, and the leader's part when it leads. A process of its own."""

from __future__ import annotations

import logging
import socketserver
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from compaction.errors import CompactionError
from compaction.segments.errors import FlushFailedError, WalFailedError
from replicated_kv.errors import (
    CommandError,
    DivergedError,
    KeyValueError,
    ProtocolError,
    Reason,
    RefusedError,
    TermError,
)
from replicated_kv.leader import Leader
from replicated_kv.machine import Command
from replicated_kv.members import Members
from replicated_kv.messages import (
    MAX_FRAME_BYTES,
    Announce,
    Append,
    AskStatus,
    Connection,
    Install,
    Installing,
    Message,
    Page,
    Parts,
    Read,
    Refused,
    Scan,
    Value,
    Write,
    Written,
)
from replicated_kv.replica import Limits, Replica

IDLE_SECONDS: Final = 120.0
"""After so long without a message a connection is closed."""
WRITE_SECONDS: Final = 20.0
_logger = logging.getLogger(__name__)
Answer = tuple[Message, Parts]


class Member:
    """Opens the data directory and listens. `run` serves until `stop`."""

    def __init__(
        self, name: str, members: Members, directory: Path, *, term: int, leader: str, limits: Limits | None = None
    ) -> None:
        """TermError: the member has promised a higher term, or another leader of this one. Errors of `LogSystem`;
        OSError: the port is taken.
        """
        self.replica = Replica(name, directory, limits or Limits())
        self.failure: Exception | None = None
        self._leader: Leader | None = None
        try:
            self.replica.follow(term, leader)
            self._server = _Server(members[name], self)
        except BaseException:
            self.replica.close()
            raise
        if leader == name:
            self._leader = Leader(self.replica, members)

    def run(self) -> None:
        """Serve until `stop` is called from another thread; then close the log. `failure` says why, if there is one."""
        if self._leader is not None:
            self._leader.start()
        try:
            self._server.serve_forever(poll_interval=0.1)
        finally:
            self._server.server_close()
            if self._leader is not None:
                self._leader.stop()
            self.replica.close()

    def stop(self) -> None:
        self._server.shutdown()

    def answer(self, message: Message, parts: Sequence[bytes]) -> Answer:
        """What a message is answered with; never raises."""
        promise = self.replica.promise
        try:
            return self._answer(message, parts)
        except RefusedError as error:
            refused = Refused(reason=error.reason, message=str(error), leader=error.leader, term=error.term)
        except TermError as error:
            promise = self.replica.promise
            refused = Refused(reason=Reason.STALE_TERM, message=str(error), leader=promise.leader, term=promise.term)
        except (CommandError, ProtocolError) as error:
            refused = Refused(reason=Reason.INVALID, message=str(error))
        except (CompactionError, KeyValueError, TimeoutError, OSError) as error:
            _logger.error("%s: %s", self.replica.name, error)
            refused = Refused(reason=Reason.FAILED, message=f"{self.replica.name}: {error or type(error).__name__}")
            if isinstance(error, WalFailedError | FlushFailedError | DivergedError):
                # It can write no more: a restart recovers what is durable, or shows what is wrong.
                self.failure = error
                threading.Thread(target=self.stop, daemon=True).start()
        return refused, ()

    def _answer(self, message: Message, parts: Sequence[bytes]) -> Answer:
        match message, parts:
            case Announce(), []:
                return self.replica.follow(message.term, message.leader), ()
            case Append(), _ if len(parts) == len(message.terms):
                return self.replica.accept(message, parts), ()
            case Install(), [data]:
                return Installing(), self.replica.install(message.term, message.leader, data)
            case Write(), [_, *_]:
                commands = [Command.decode(part) for part in parts]
                return Written(index=self._leading().write(commands, timeout=WRITE_SECONDS)), ()
            case Read(), [key]:
                self._leading().wait_ready(WRITE_SECONDS)
                found = self.replica.get(key)
                if found is None:
                    return Value(index=None), ()
                return Value(index=found.index), [Command.decode(found.payload).value]
            case Scan(), [after]:
                applied, items = self.replica.scan(after, message.limit, limit_bytes=MAX_FRAME_BYTES // 2)
                return Page(applied=applied), [part for item in items for part in item]
            case AskStatus(), []:
                return self.replica.status(), ()
        raise ProtocolError(f"{type(message).__name__} with {len(parts)} parts is not answered")

    def _leading(self) -> Leader:
        if self._leader is not None and self._leader.leads:
            return self._leader
        promise = self.replica.promise
        message = f"{self.replica.name} follows {promise.leader} in term {promise.term}"
        raise RefusedError(Reason.NOT_LEADER, message, leader=promise.leader, term=promise.term)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], member: Member) -> None:
        self.member = member
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    """One connection: a message, its answer, and so on."""

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        self.request.settimeout(IDLE_SECONDS)
        connection = Connection(self.request)
        while True:
            try:
                message, parts = connection.receive()
                answer, rest = self.server.member.answer(message, parts)
                connection.send(answer, rest)
            except (EOFError, OSError):
                return
            except ProtocolError as error:
                # What follows on this connection cannot be understood either.
                _logger.warning("a connection is closed: %s", error)
                return
