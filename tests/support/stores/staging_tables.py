"""Tables of staging areas for tests: records of every shape, and their bytes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from hypothesis import strategies as st

from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import frame_value
from compaction.staging.format.table_reader import TableReader
from compaction.staging.format.table_writer import TableWriter

Record = tuple[bytes, bytes]

_STEPS: Final = bytes(13 * place % 251 for place in range(2 * 251))


@cache
def numbered(count: int) -> list[Record]:
    """Records as an importer writes them: keys with a common prefix, a hash for an identity, up to 200 bytes."""
    return [
        (
            b"k/%08d" % number,
            frame_value(
                hashlib.sha256(str(number).encode()).digest(),
                # From the place of 7 * number on: 58 is the inverse of 13.
                _STEPS[7 * 58 * number % 251 :][: 37 * number % 200],
            ),
        )
        for number in range(count)
    ]


def digits(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _high(seed: bytes) -> bytes:
    return bytes((0xFF, 0xFE, 0)[byte % 3] for byte in seed[: seed[0] % 9])


def _keys(count: int, key: Callable[[bytes], bytes]) -> list[bytes]:
    return sorted({key(digits(f"key {number}")) for number in range(count)})


SHAPES: Final[Mapping[str, list[Record]]] = {
    # A key that is a prefix of the next, which goes on as a trailer does: stored prefixes reach into trailers.
    "trailers": [
        (key, digits(str(place))[: place % 9])
        for place, key in enumerate(_keys(4000, lambda seed: bytes(b & 3 == 3 for b in seed[: seed[31] % 14])))
    ],
    # Separators of keys that end in 0xff.
    "high": [(key, digits(str(place)) * (place % 5)) for place, key in enumerate(_keys(6000, _high))],
    # Long keys: few blocks fill an index block.
    "long": sorted(
        (b"x" * (place * 7 % 900) + key, key * (place % 3))
        for place, key in enumerate(_keys(2000, lambda seed: seed[:20]))
    ),
    # Values around the sizes at which blocks end.
    "sizes": [
        (key, b"v" * ((place * 997) % 4300) if place % 3 else digits(key.hex()) * ((place * 31) % 140))
        for place, key in enumerate(_keys(1500, lambda seed: seed[:6]))
    ],
    "large": [(b"%03d" % place, digits(str(place)) * 4000) for place in range(12)],
}

ANY_RECORDS: Final = st.dictionaries(
    st.one_of(st.binary(max_size=20), st.lists(st.sampled_from((0, 1, 0xFE, 0xFF)), max_size=12).map(bytes)),
    st.one_of(st.binary(max_size=40), st.integers(0, 9000).map(lambda size: b"ab" * size)),
    max_size=60,
).map(lambda found: sorted(found.items()))
"""Any sorted records: of a strategy of Hypothesis."""


def table(records: list[Record], user: Mapping[bytes, bytes] | None = None, *, step: int = 100_000) -> bytes:
    """The bytes of a table, written in batches of `step` records."""
    out = io.BytesIO()
    writer = TableWriter(out)
    for begin in range(0, len(records), step):
        writer.add(RecordColumns.of(records[begin : begin + step]))
    estimate = writer.estimated_size
    writer.finish(properties(records, estimate) if user is None else user)
    return out.getvalue()


def properties(records: list[Record], estimate: int) -> dict[bytes, bytes]:
    """The user properties of a range of these records."""
    return {
        b"type": b"ranges",
        b"min_key": records[0][0] if records else b"",
        b"max_key": records[-1][0] if records else b"",
        b"count": b"%d" % len(records),
        b"estimated_size_bytes": b"%d" % estimate,
    }


def records_of(reader: TableReader, start: bytes = b"", stop: bytes | None = None) -> list[Record]:
    """All records, as pairs."""
    return [pair for batch in reader.batches(start, stop) for pair in batch.pairs()]
