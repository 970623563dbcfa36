"""Proof before a commit: what was written is read again, and must be the rows that were read.

A file is read as a reader of blocks would read it, row by row through its encodings and page checksums, not as it was
in memory; strings come as dictionaries, whose values the fingerprint hashes once. What is compared is the number of
rows and an order-independent content hash (`rows`), so proofs of several outputs add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from compaction.blocks.errors import BlockVerificationError, UnreadableBlockError
from compaction.blocks.fingerprint.row_hashes import SLICE_ROWS, Fingerprinter, keep_freed
from compaction.blocks.merge.columns import SteadyDictionaries, coded_texts, not_repeating
from compaction.blocks.merge.footers import MergeInput, Moved, OpenedFooter, OpenFile, nobody, read_footer, reading
from compaction.blocks.merge.runs import RowsTooLargeError, decoded_row
from compaction.blocks.model import RowFingerprint

BATCH_ROWS: Final = 4 * SLICE_ROWS
_ROOM: Final = 64 << 20
"""Bytes of rows that are decoded at a time, about."""
_ARRAYS: Final = 4 << 20
"""More than the arrays of a batch take together."""


def read_back(name: str, open_file: OpenFile, *, moved: Moved = nobody) -> RowFingerprint:
    """The fingerprint of a Parquet file's rows; memory: a batch, and the pages of a row group. `moved` is called with
    them.

    Raises UnreadableBlockError.
    """
    keep_freed(_ARRAYS)
    footer = read_footer(MergeInput(name=name, open=open_file), ())
    hasher, steady = Fingerprinter(), SteadyDictionaries()
    with reading(name), footer.opened(_coded(footer)) as file, footer.source() as source:
        for group in footer.groups:  # a batch of two has two dictionaries, which the library cannot nest
            try:
                rows = max(1, min(BATCH_ROWS, _ROOM // decoded_row(file, group, source, room=_ROOM)))
            except RowsTooLargeError:
                rows = 1  # the merge has had it in memory, too
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], use_threads=False):
                hasher.update(steady.of(footer.decoded(batch)))
                moved(batch.num_rows)
    if hasher.value.rows != footer.metadata.num_rows:
        raise UnreadableBlockError(name, f"{hasher.value.rows} rows, its footer says {footer.metadata.num_rows}")
    return hasher.value


def _coded(footer: OpenedFooter) -> list[str]:
    coded = coded_texts(footer.metadata)
    top = [name for name in coded if name in footer.schema.names]
    if not top or not footer.groups:
        return coded
    with reading(footer.input.name), footer.opened(coded) as file:
        many = not_repeating(file, footer.groups[0], top)
    return [name for name in coded if name not in many]


def verify(name: str, found: Sequence[RowFingerprint], *, expected: RowFingerprint) -> None:
    """Compare what the outputs read back as with what they must hold. Raises BlockVerificationError."""
    total = sum(found, RowFingerprint())
    if total != expected:
        raise BlockVerificationError(name, str(expected), str(total))
