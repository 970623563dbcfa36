"""What a round does outside of the coordinator, each in a thread of its own."""

from __future__ import annotations

from enum import StrEnum


class Work(StrEnum):
    """One kind of work; a catalog has each at most once at a time."""

    ASK = "ask"
    """Claim the log, then find the participants and ask all of them."""
    READ = "read"
    """Read the log, after the last answer."""
    SAVE = "save"
    """Save a snapshot with the token of the round."""
    SEND = "send"
    """Send the minimum to all participants."""
