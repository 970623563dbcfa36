"""A fingerprint of records, to prove what was written (docs/design/staging.md#applying-changes)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import xxhash

from compaction.staging.format.columns import RecordColumns, content_of, lengths_of

_SEED: Final = b"records"


class ContentFingerprint:
    """XXH3 (128 bits) of keys, values and their lengths, in order; how they are cut into batches makes no difference.

    Each of the four columns is hashed by itself, as it lies in memory.
    """

    def __init__(self) -> None:
        self.records = 0
        self._columns = tuple(xxhash.xxh3_128() for _ in range(4))

    def add(self, records: RecordColumns) -> None:
        """The next records."""
        self.records += len(records)
        for column, array in zip((0, 2), (records.keys, records.values), strict=True):
            self._columns[column].update(lengths_of(array).astype("<i8").tobytes())
            self._columns[column + 1].update(content_of(array))

    def text(self) -> str:
        """The number of records and the hash: `<records>:<hex>`."""
        digests = b"".join(column.digest() for column in self._columns)
        return f"{self.records}:{xxhash.xxh3_128_hexdigest(_SEED + digests)}"


def fingerprint(batches: Iterable[RecordColumns]) -> str:
    """The fingerprint of these records."""
    content = ContentFingerprint()
    for batch in batches:
        content.add(batch)
    return content.text()
