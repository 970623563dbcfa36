"""The fencing token of a coordinator's term (docs/design/catalog-compaction.md#fencing)."""

from __future__ import annotations


def token_of(transitions: int, written: int, *, same_term: bool) -> int:
    """The token to claim the log with.

    Args:
        transitions: leaseTransitions of the coordinator's Lease, which count its terms.
        written: the token in the status, 0 when there is none.
        same_term: the status was written in this term, so that its token is this term's.

    A Lease that was deleted counts from 0 again: the status keeps the token growing.
    """
    return written if same_term and written > 0 else max(transitions, written) + 1
