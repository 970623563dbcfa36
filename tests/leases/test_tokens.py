"""Tokens only ever grow, whatever was forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import TokenExhaustedError
from compaction.leases.record import MAX_TOKEN, next_token

MEMORY = st.none() | st.integers(0, MAX_TOKEN - 1)


@given(MEMORY, MEMORY, MEMORY)
def test_larger_than_everything_remembered(lease: int | None, status: int | None, store: int | None) -> None:
    token = next_token(lease, status, store)
    assert token >= 1
    assert all(token > known for known in (lease, status, store) if known is not None)
    assert token == max((known for known in (lease, status, store) if known is not None), default=0) + 1


def test_the_store_alone_is_enough_after_the_lease_was_deleted_and_the_cluster_restored() -> None:
    assert next_token(None, None, 41) == 42


def test_the_end_of_int32_is_an_error_with_a_way_out() -> None:
    with pytest.raises(TokenExhaustedError, match="another name"):
        next_token(MAX_TOKEN, None, None)


def test_negative_values_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        next_token(-1, None, None)
