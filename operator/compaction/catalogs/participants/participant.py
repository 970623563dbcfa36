"""What the endpoint of a participant asks of the process it serves (docs/design/catalog-compaction.md#participants)."""

from __future__ import annotations

from typing import Protocol

from compaction.catalogs.participants.report import Report


class Participant(Protocol):
    """Called by several threads at a time."""

    @property
    def name(self) -> str:
        """As in its reports; it stays the same after a restart."""
        ...

    def report(self) -> Report:
        """What holds now, by the participant's own clock, which is read together with its transactions: a time that the
        caller brought along could be later than the begin of one that is not counted yet.
        """
        ...

    def store_minimum(self, timestamp: int) -> int:
        """Store the minimum of all transactions in the log of each partition that this participant leads, which its
        replication carries on; how many these are. A smaller one than before changes nothing.

        Raises MinimumAheadError, and nothing is stored, when its own transactions need an older version.
        """
        ...
