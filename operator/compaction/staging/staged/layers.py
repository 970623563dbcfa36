"""Layers of staged changes, the newest first, as one stream in which each key is once: by whole columns.

docs/design/staging.md#layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.staging.format.columns import EMPTY_COLUMNS, RecordColumns, concatenated

BUFFERED: Final = 1 << 17
"""Records that the layers which have not ended buffer together before a round. The first rounds take fewer, since a
listing often wants only the first few keys.
"""
BUFFERED_BYTES: Final = 64 << 20
"""The same in bytes: fewer records where they are large."""
SMALLEST_SHARE: Final = 256
LARGEST_BATCH: Final = 1 << 16
"""Records of a batch that is returned."""


class _Layer:
    """What is left of one stream: `buffered` batches, in order, and whether there will be more."""

    __slots__ = ("_batches", "_stream", "ended", "nbytes", "records")

    def __init__(self, stream: Iterable[RecordColumns]) -> None:
        self._stream = iter(stream)
        self._batches: list[RecordColumns] = []
        self.records = self.nbytes = 0
        self.ended = False

    def fill(self, share: int, nbytes: int) -> None:
        """Buffer at least `share` records or so many bytes, or all there are."""
        while not self.ended and (not self.records or (self.records < share and self.nbytes < nbytes)):
            batch = next(self._stream, None)
            if batch is None:
                self.ended = True
            elif len(batch):
                self._batches.append(batch)
                self.records += len(batch)
                self.nbytes += batch.nbytes

    @property
    def last_key(self) -> bytes:
        return _key(self._batches[-1], -1)

    def take(self, cut: bytes | None) -> RecordColumns:
        """Remove and return the buffered records with keys up to `cut`; all of them for None."""
        taken = []
        while self._batches:
            batch = self._batches[0]
            if cut is None or _key(batch, -1) <= cut:
                taken.append(self._batches.pop(0))
                continue
            count = 0
            if _key(batch, 0) <= cut:
                count = bisect_right(range(len(batch)), cut, key=lambda at: _key(batch, at))
                taken.append(batch.slice(0, count))
                self._batches[0] = batch.slice(count, len(batch))
            break
        found = concatenated(taken)
        self.records -= len(found)
        self.nbytes -= found.nbytes
        return found

    def rest(self) -> Iterator[RecordColumns]:
        """All that is left, without buffering it."""
        yield from self._batches
        self._batches = []
        yield from self._stream


def _key(batch: RecordColumns, at: int) -> bytes:
    found: bytes = batch.keys[at].as_py()
    return found


def layered(layers: Sequence[Iterable[RecordColumns]]) -> Iterator[RecordColumns]:
    """The records of all layers in the order of their keys, of equal keys the one of the first layer that has it;
    tombstones are kept.

    Each layer is a stream of batches whose keys ascend strictly, within and across them. Memory: for each layer one
    batch and its share of `BUFFERED` records.
    """
    left = [_Layer(stream) for stream in layers]
    share = SMALLEST_SHARE
    while len(left) > 1:
        for layer in left:
            layer.fill(share, BUFFERED_BYTES // len(left))
        left = _joined_neighbours([layer for layer in left if layer.records])
        share = max(SMALLEST_SHARE, min(2 * share, BUFFERED // max(1, len(left))))
        cut = min((layer.last_key for layer in left if not layer.ended), default=None)
        decided = _newest([layer.take(cut) for layer in left])
        for begin in range(0, len(decided), LARGEST_BATCH):
            yield decided.slice(begin, min(begin + LARGEST_BATCH, len(decided)))
    for layer in left:
        yield from (batch for batch in layer.rest() if len(batch))


def _joined_neighbours(layers: list[_Layer]) -> list[_Layer]:
    """The layers with neighbours that ended joined into one, where that makes them fewer by a quarter or more: so each
    record is joined a few times, not once for every other layer that ends.
    """
    groups: list[list[_Layer]] = []
    for layer in layers:
        if groups and layer.ended and groups[-1][-1].ended:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    if len(layers) - len(groups) < max(1, len(layers) // 4):
        return layers
    return [group[0] if len(group) == 1 else _ended(group) for group in groups]


def _ended(group: list[_Layer]) -> _Layer:
    joined = _Layer([_newest([layer.take(None) for layer in group])])
    joined.fill(1, 1)
    joined.ended = True
    return joined


def _newest(parts: list[RecordColumns]) -> RecordColumns:
    """Sorted, of equal keys the record of the first part that has it."""
    some = [part for part in parts if len(part)]
    if len(some) < 2:
        return some[0] if some else EMPTY_COLUMNS
    together = concatenated(some)
    # The sort is stable, so the first of equal keys stays the first.
    order = pc.array_sort_indices(together.keys)
    keys = together.keys.take(order)
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    if not first.all():
        kept = pa.array(np.flatnonzero(first))
        order, keys = order.take(kept), keys.take(kept)
    return RecordColumns(keys, together.values.take(order))
