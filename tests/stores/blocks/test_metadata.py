"""What a block says of itself comes back as it was, or is refused by the name of its key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.stores.blocks.metadata import PREFIX, BlockMetadata, decode
from compaction.stores.blocks.model import Fingerprint

TEXTS = st.text(max_size=20)
NAMES = st.lists(TEXTS, max_size=5).map(tuple)
NUMBERS = st.integers(0, 2**63 - 1)
SAID = st.builds(
    BlockMetadata,
    id=st.none() | TEXTS,
    tenant=st.none() | TEXTS,
    shard=st.none() | NUMBERS,
    level=st.none() | NUMBERS,
    time_column=st.none() | TEXTS,
    fingerprint=st.none() | st.builds(Fingerprint, NUMBERS, st.integers(0, 2**128 - 1)),
    sort_key=st.none() | NAMES,
    job=st.none() | TEXTS,
    token=st.none() | NUMBERS,
    sources=NAMES,
)


def texts(said: BlockMetadata) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in said.encode().items()}


@given(SAID)
def test_it_comes_back_as_it_was(said: BlockMetadata) -> None:
    assert decode({**texts(said), "pandas": "{}", f"{PREFIX}later": "unknown"}) == said


def test_parts_are_said_with_sources() -> None:
    said = BlockMetadata(sources=("a", "b"), part=2, parts=3, job="j", token=7)
    assert decode(texts(said)) == said


def test_nothing_said_is_nothing_known() -> None:
    assert decode({}) == BlockMetadata()


def test_what_another_algorithm_counted_or_a_later_version_wrote_is_not_taken_for_ours() -> None:
    said = texts(BlockMetadata(tenant="t", fingerprint=Fingerprint(1, 2)))
    assert decode({**said, f"{PREFIX}fingerprint-algorithm": "rows128-2"}).fingerprint is None
    assert decode({**said, f"{PREFIX}version": "2"}) == BlockMetadata()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shard", "-1"), ("shard", "1.0"), ("shard", "1" * 20), ("level", ""), ("level", "\u0661"),
        ("fingerprint", "1:2"),
        ("sort-key", "a"), ("sort-key", '"a"'), ("sort-key", "[1]"), ("sources", "[" * 100_000), ("part", "1"),
        ("parts", "0"), ("sources", "{}"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_named(key: str, value: str) -> None:
    said = texts(BlockMetadata(fingerprint=Fingerprint(1, 2)))
    with pytest.raises(ValueError, match=PREFIX + ("part" if key == "parts" else key)):
        decode({**said, PREFIX + key: value})
