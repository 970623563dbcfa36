"""Staged changes by the column: records whose value is empty are tombstones.

A value of a range is never empty (it begins with the length of an identity), so `RecordColumns` hold both: keys in
strictly ascending order, and for each the framed value (docs/design/staging.md#values) or b"" for a deletion.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.staging.format.columns import RecordColumns, lengths_of

TOMBSTONE: Final = b""
"""The value of a change that deletes its key."""


def tombstones(changes: RecordColumns) -> npt.NDArray[np.bool_]:
    """Which of the changes delete their key."""
    found: npt.NDArray[np.bool_] = lengths_of(changes.values) == 0
    return found


def rows_where(records: RecordColumns, chosen: npt.NDArray[np.bool_]) -> RecordColumns:
    """The records for which `chosen` is true."""
    if chosen.all():
        return records
    rows = pa.array(np.flatnonzero(chosen))
    return RecordColumns(records.keys.take(rows), records.values.take(rows))
