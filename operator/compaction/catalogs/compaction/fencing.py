"""The fencing token of a coordinator's term (docs/design/catalog-compaction.md#fencing)."""

from __future__ import annotations


def token_of(transitions: int, written: int) -> int:
    """The token of a term that begins: larger than those of all terms before it.

    Args:
        transitions: leaseTransitions of the coordinator's Lease, which count its terms.
        written: the last token in the status, 0 when there is none. A Lease that was deleted counts from 0 again: the
            status keeps the token growing.
    """
    return max(transitions, written) + 1
