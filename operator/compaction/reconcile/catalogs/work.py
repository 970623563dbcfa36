"""What a round does outside of the coordinator, each in a thread of its own."""

from __future__ import annotations

from enum import StrEnum


class Work(StrEnum):
    """One kind of work; a catalog has each at most once at a time."""

    ASK = "ask"
    """Find the participants and ask all of them."""
    READ = "read"
    """Read the log, after the last answer."""
    SAVE = "save"
    """Claim the log with the token, then save a snapshot."""
    SEND = "send"
    """Send the minimum to all participants."""
