"""The fencing token of a round (docs/design/catalog-compaction.md#fencing)."""

from __future__ import annotations


def least_token(transitions: int, written: int) -> int:
    """The least token of a round that begins. The round claims it from the log, which makes it larger than any that the
    log has seen: so it grows also when Lease and status are lost.

    Args:
        transitions: leaseTransitions of the coordinator's Lease, which count its terms.
        written: the last token in the status, 0 when there is none. A Lease that was deleted counts from 0 again: the
            status keeps the token growing where the log does not answer.
    """
    return max(transitions, written) + 1
