"""What can go wrong between members and clients."""

from __future__ import annotations

from enum import StrEnum


class KeyValueError(Exception):
    """Base of all errors of this example."""


class CommandError(KeyValueError):
    """A key, a value or an encoded command is not one that the store takes."""


class ProtocolError(KeyValueError):
    """Bytes from the other side are not a frame, or not the message that is due."""


class TermError(KeyValueError):
    """A term or a leader that a member has not promised to follow. Names what it has promised."""


class DivergedError(KeyValueError):
    """A leader asks for a change of an entry that is committed here: the logs belong to different stores."""


class Reason(StrEnum):
    """Why a member does not do what it is asked for."""

    NOT_LEADER = "NotLeader"
    STALE_TERM = "StaleTerm"
    NOT_READY = "NotReady"
    """The leader waits for a majority. A write may be committed later."""
    INVALID = "Invalid"
    FAILED = "Failed"


class RefusedError(KeyValueError):
    """A member's answer: what it refuses, why, and which leader it knows."""

    def __init__(self, reason: Reason, message: str, *, leader: str = "", term: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.leader = leader
        self.term = term


class UnavailableError(KeyValueError):
    """No member did what a client asked for within its time. A write may have been done or not."""
