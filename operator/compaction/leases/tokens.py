"""Fencing tokens: positive integers that grow at every assignment of a job (docs/design/leases-and-tokens.md#tokens).

The token lives in `Lease.spec.leaseTransitions`, but a Lease can be deleted and a cluster restored from an old backup.
So the next one is floored by every place that remembers: the job's status and, above all, the store itself.
"""

from compaction.errors import TokenExhaustedError

#: `leaseTransitions` is an int32; one assignment per second would reach this after 68 years.
MAX_TOKEN = 2**31 - 1


def next_token(lease_transitions: int | None, status_token: int | None, high_water: int | None) -> int:
    """`max(Lease.leaseTransitions, status.fencingToken, the store's high water) + 1`; None means nothing is recorded.

    Strictly larger than every argument. Raises ValueError on a negative argument, TokenExhaustedError at int32's end.
    """
    known = [value for value in (lease_transitions, status_token, high_water) if value is not None]
    if any(value < 0 for value in known):
        raise ValueError(f"a token cannot be negative: {known}")
    token = max(known, default=0) + 1
    if token > MAX_TOKEN:
        raise TokenExhaustedError(
            f"the next fencing token would be {token}, above the largest a Lease can hold ({MAX_TOKEN}); "
            "create the job under another name"
        )
    return token
