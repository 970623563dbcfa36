"""The leader of a term: asks for the members' promise, replicates its log to them, and commits what a majority holds.

A person chooses the leader. That a choice can lose nothing is checked as in an election: the leader begins once a
majority, itself included, has promised to follow it, and none of these has a log that is ahead of its own.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from compaction.errors import CompactionError
from compaction.segments.install.driver import SnapshotSender
from replicated_kv.errors import KeyValueError, Reason, RefusedError, TermError
from replicated_kv.machine import Command, Operation
from replicated_kv.members import Address, Members
from replicated_kv.messages import Announce, Append, Appended, Connection, Install, Installing, Position
from replicated_kv.replica import Replica

BATCH: Final = 64
"""Entries in one message."""
HEARTBEAT_SECONDS: Final = 0.3
"""After so long without a write a message without entries goes to a follower."""
ANSWER_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 0.2
_logger = logging.getLogger(__name__)


@dataclass
class Peer:
    """A follower. Everything up to `match` is durable there; only its own thread changes it."""

    name: str
    address: Address
    match: int = 0
    connected: bool = False
    follows: bool = False
    trouble: str = ""


class Leader:
    """Leads in the term that `replica` has promised to itself, until a higher one appears."""

    def __init__(self, replica: Replica, members: Members) -> None:
        self.term = replica.promise.term
        self._replica = replica
        self._peers = [Peer(name, address) for name, address in members.items() if name != replica.name]
        self._first = 0
        self._committed = 0
        self._stopped = False
        self._election = threading.Lock()
        self._changed = threading.Condition()
        replica.trail = self._trail
        self._threads = [
            threading.Thread(target=self._replicate, args=(peer,), name=f"to-{peer.name}", daemon=True)
            for peer in self._peers
        ]

    def start(self) -> None:
        if not self._peers:
            self._begin()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._notify()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(HEARTBEAT_SECONDS)

    @property
    def leads(self) -> bool:
        promise = self._replica.promise
        return not self._stopped and (promise.term, promise.leader) == (self.term, self._replica.name)

    def write(self, commands: Sequence[Command], *, timeout: float) -> int:
        """Append commands; the index of the last one, once a majority has all of them durably and they are applied.

        RefusedError: no majority answers in time, or another member leads now. Then they may be committed later.
        CommandError: one is not valid, and none is written.
        """
        until = time.monotonic() + timeout
        self.wait_ready(until - time.monotonic())
        index = self._replica.propose(commands, self.term).result(timeout).index
        self._advance()
        self._wait(lambda: self._committed >= index, until - time.monotonic())
        return index

    def wait_ready(self, timeout: float) -> None:
        """Until all that earlier leaders committed is applied here. RefusedError: see `write`."""
        self._wait(lambda: self._first > 0 and self._committed >= self._first, timeout)

    def _wait(self, ready: Callable[[], bool], timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: ready() or not self.leads, max(0.0, timeout))
        promise = self._replica.promise
        if not self.leads:
            reason, message = Reason.NOT_LEADER, f"{self._replica.name} does not lead any more"
        elif not ready():
            troubles = "; ".join(peer.trouble for peer in self._peers if peer.trouble)
            reason, message = Reason.NOT_READY, f"no majority has answered yet: {troubles or 'they are slow'}"
        else:
            return
        raise RefusedError(reason, message, leader=promise.leader, term=promise.term)

    def _begin(self) -> None:
        """The first entry of the term. Entries of earlier terms are committed with it, never by being counted."""
        with self._election:
            votes = 1 + sum(peer.follows for peer in self._peers)
            if not self._first and 2 * votes > len(self._peers) + 1:
                self._first = (
                    self._replica.propose([Command(Operation.NOTHING)], self.term).result(ANSWER_SECONDS).index
                )
                _logger.info("%s leads in term %d from entry %d on", self._replica.name, self.term, self._first)
        self._advance()

    def _advance(self) -> None:
        """Commit what a majority holds, this member included."""
        held = sorted([self._replica.durable, *(peer.match for peer in self._peers)], reverse=True)
        commit = held[len(held) // 2]
        if self._first and commit >= self._first and self.leads:
            self._replica.advance(commit)
            with self._changed:
                self._committed = max(self._committed, commit)
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _trail(self) -> int:
        return min((peer.match for peer in self._peers if peer.connected), default=sys.maxsize)

    def _replicate(self, peer: Peer) -> None:
        """The life of a follower, seen from here: its thread."""
        while self.leads:
            try:
                with Connection.open(peer.address, timeout=ANSWER_SECONDS) as connection:
                    self._follow(peer, connection)
            except RefusedError as error:
                if error.reason is Reason.STALE_TERM and error.term > self.term:
                    self._depose(error)
                self._report(peer, error)
            except TermError as error:
                # Another leader has spoken to this member meanwhile.
                self._report(peer, error)
            except (OSError, EOFError, KeyValueError, CompactionError) as error:
                self._report(peer, error)
            finally:
                peer.connected = False
                self._advance()
            with self._changed:
                self._changed.wait_for(lambda: not self.leads, RETRY_SECONDS)
        self._notify()

    def _depose(self, error: RefusedError) -> None:
        try:
            self._replica.follow(error.term, error.leader)
        except TermError:
            _logger.info("a leader of a still higher term was here first")

    def _report(self, peer: Peer, error: Exception) -> None:
        trouble = f"{peer.name}: {error or type(error).__name__}"
        if trouble != peer.trouble:
            _logger.warning("%s", trouble)
        peer.trouble = trouble

    def _follow(self, peer: Peer, connection: Connection) -> None:
        """Bring the follower up to date, and keep it so until the connection ends."""
        announce = Announce(term=self.term, leader=self._replica.name)
        position, _ = connection.call(announce, answer=Position)
        self._vote(peer, position)
        with self._changed:
            self._changed.wait_for(lambda: self._first > 0 or not self.leads)
        following = min(position.index, self._replica.last[0]) + 1
        peer.match, peer.connected, told = 0, True, -1
        while self.leads:
            following, told = self._send(peer, connection, following)
            with self._changed:
                self._changed.wait_for(
                    lambda: self._replica.durable >= following or self._committed > told or not self.leads,  # noqa: B023
                    HEARTBEAT_SECONDS,
                )

    def _vote(self, peer: Peer, position: Position) -> None:
        """RefusedError: the follower's log is ahead of this one, and may have what was committed; before it leads."""
        index, term = self._replica.last
        if not self._first and (position.term, position.index) > (term, index):
            raise RefusedError(
                Reason.NOT_READY,
                f"its log ends at entry {position.index} of term {position.term}, this one at {index} of {term}: "
                f"let {peer.name} lead in a higher term",
            )
        peer.follows, peer.trouble = True, ""
        self._begin()

    def _send(self, peer: Peer, connection: Connection, following: int) -> tuple[int, int]:
        """One message with the entries from `following` on; what follows then, and which commit it carried."""
        # Only what is durable here: a leader that is killed and leads on in the same term has all that it sent.
        entries = self._replica.entries(following, BATCH)
        previous = self._replica.term_at(following - 1)
        if entries is None or previous is None:
            return self._install(peer, connection), -1
        commit = self._committed
        message = Append(
            term=self.term,
            leader=self._replica.name,
            previous_index=following - 1,
            previous_term=previous,
            commit=commit,
            terms=[entry.term for entry in entries],
        )
        answer, _ = connection.call(message, [entry.payload for entry in entries], answer=Appended)
        if not answer.accepted:
            return answer.index + 1, -1
        peer.match = max(peer.match, answer.index)
        self._advance()
        return answer.index + 1, commit

    def _install(self, peer: Peer, connection: Connection) -> int:
        """Entries that the follower needs are dead: send the live ones that it lacks, then the snapshot of the state.

        What follows the snapshot then. RefusedError: it could not be installed; the connection begins again.
        """
        message = Install(term=self.term, leader=self._replica.name)
        # A number that grows, also when this member is started again in its term.
        with SnapshotSender(self._replica.log, term=self.term, transfer=time.time_ns()) as sender:
            waiting = deque(sender.start())
            while self.leads and not sender.state.is_over:
                # The transport loses nothing: each message is answered before the next one is sent.
                _, answers = connection.call(message, [waiting.popleft()], answer=Installing)
                for answer in answers:
                    waiting.extend(sender.receive(answer))
                if not waiting and not sender.state.is_over:
                    waiting.extend(sender.resend())
            if sender.state.applied is None:
                detail = sender.state.detail or "this member does not lead any more"
                raise RefusedError(Reason.NOT_READY, f"the snapshot was not installed: {detail}")
        peer.match = max(peer.match, sender.state.applied)
        _logger.info("%s has the snapshot, and entries up to %d", peer.name, sender.state.applied)
        return sender.state.applied + 1
