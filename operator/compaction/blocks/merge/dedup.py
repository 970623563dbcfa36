"""Of rows with an equal key only the last is kept; what is dropped is counted, hashed and named.

Rows arrive in the order of (key, input, row), so the last is the one of the latest input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from compaction.blocks.fingerprint.rows import fingerprint
from compaction.blocks.merge.columns import Columns, Rows
from compaction.blocks.merge.rounds import Emitted, copy_of_last
from compaction.blocks.merge.settings import Duplicates

EXAMPLES: Final = 10


class KeepLast:
    """Passes on the last row of each key. The very last row of a round is held back: the next may replace it."""

    def __init__(self, columns: Columns) -> None:
        self.dropped = Duplicates()
        self._columns = columns

    def of(self, rounds: Iterable[Emitted]) -> Iterator[Rows]:
        """The rows that are kept, in order."""
        held: Rows | None = None
        for emitted in rounds:
            if held is not None:
                if emitted.new[0]:
                    yield held
                else:
                    self._drop(held)
            last = np.append(emitted.new[1:], True)  # whether a row is the last of its key, as far as is known
            rows = emitted.rows
            if not last.all():
                self._drop(rows.take(pa.array(np.flatnonzero(~last))))
            held = copy_of_last(rows)
            last[-1] = False
            kept = np.flatnonzero(last)
            if len(kept) == rows.count - 1:
                yield rows.slice(0, rows.count - 1)
            elif len(kept):
                yield rows.take(pa.array(kept))
        if held is not None:
            yield held

    def _drop(self, rows: Rows) -> None:
        batch = self._columns.batch(rows)
        examples = self.dropped.examples
        if len(examples) < EXAMPLES:
            keys = batch.select(list(self._columns.keys)).slice(0, EXAMPLES - len(examples)).to_pylist()
            examples += tuple(_values(key) for key in keys)
        self.dropped = Duplicates(self.dropped.fingerprint + fingerprint(batch), examples)


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.values())
