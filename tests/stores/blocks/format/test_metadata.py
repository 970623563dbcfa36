"""What a block says of itself comes back as it was, or is refused by the name of its key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.format.metadata import MAX_ANCESTORS, PREFIX, BlockMetadata, ancestry, decode
from compaction.blocks.model import RowFingerprint
from support.stores.block_index import block_id

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
    fingerprint=st.none() | st.builds(RowFingerprint, NUMBERS, st.integers(0, 2**128 - 1)),
    sort_key=st.none() | NAMES,
    job=st.none() | TEXTS,
    token=st.none() | NUMBERS,
    sources=NAMES,
    outputs=NAMES,
    ancestors=st.lists(st.integers(0, 99).map(block_id), max_size=5).map(tuple),
)


def texts(said: BlockMetadata) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in said.encode().items()}


@given(SAID)
def test_it_comes_back_as_it_was(said: BlockMetadata) -> None:
    assert decode({**texts(said), "pandas": "{}", f"{PREFIX}later": "unknown"}) == said


def test_parts_are_said_with_sources() -> None:
    said = BlockMetadata(sources=("a", "b"), part=2, parts=3, job="j", token=7)
    assert decode(texts(said)) == said


def test_ancestors_are_said_generation_by_generation_the_nearest_first() -> None:
    written = BlockMetadata(id="w")
    one = BlockMetadata(sources=(block_id(1), block_id(2)))
    other = BlockMetadata(sources=(block_id(3),), ancestors=(block_id(4), block_id(1)))
    assert ancestry([written, other, one]) == tuple(map(block_id, (3, 1, 2, 4)))
    many = BlockMetadata(sources=tuple(map(block_id, range(MAX_ANCESTORS + 5))))
    assert ancestry([many]) == many.sources[:MAX_ANCESTORS]


def test_nothing_said_is_nothing_known() -> None:
    assert decode({}) == BlockMetadata()


def test_what_another_algorithm_counted_or_a_later_version_wrote_is_not_taken_for_ours() -> None:
    said = texts(BlockMetadata(tenant="t", fingerprint=RowFingerprint(1, 2)))
    assert decode({**said, f"{PREFIX}fingerprint-algorithm": "rows128-0"}).fingerprint is None
    assert decode({**said, f"{PREFIX}version": "2"}) == BlockMetadata()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shard", "-1"), ("shard", "1.0"), ("shard", "1" * 20), ("level", ""), ("level", "\u0661"),
        ("fingerprint", "1:2"),
        ("sort-key", "a"), ("sort-key", '"a"'), ("sort-key", "[1]"), ("sources", "[" * 100_000), ("part", "1"),
        ("parts", "0"), ("sources", "{}"), ("outputs", "1"), ("ancestors", "0" * 27), ("ancestors", "u" * 26),
        ("ancestors", "0" * 26 * (MAX_ANCESTORS + 1)),
    ],
)  # fmt: skip
def test_what_is_malformed_is_named(key: str, value: str) -> None:
    said = texts(BlockMetadata(fingerprint=RowFingerprint(1, 2)))
    with pytest.raises(ValueError, match=PREFIX + ("part" if key == "parts" else key)):
        decode({**said, PREFIX + key: value})
