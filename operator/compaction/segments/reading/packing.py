"""Which bytes of a file to read for some of its payloads, and how to lay the payloads side by side. Pure, no I/O.

Neighbours are read at once, also over a gap of dead bytes that is cheaper to read than to skip. Several such reads fill
one buffer before anything is done with it, so what a batch costs beside its bytes is paid per buffer, not per run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compaction.segments.model import RowArray


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """The reads that bring the payloads at positions `begin..end` (exclusive) of a selection into one buffer.

    Read i brings `sizes[i]` bytes from `offsets[i]` of the file; in the buffer, one read follows the other. Payload p
    of the batch then lies at `starts[p]`.
    """

    begin: int
    end: int
    offsets: list[int]
    sizes: list[int]
    starts: RowArray

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return sum(self.sizes)


def plan_reads(offsets: RowArray, lengths: RowArray, *, chunk_bytes: int, gap_bytes: int) -> Iterator[Reads]:
    """Reads for payloads at `offsets` in the file, in that order, each batch at most `chunk_bytes` or one payload.

    Any order and overlaps are fine; only what ascends and lies at most `gap_bytes` apart is read together.
    """
    ends = offsets + lengths
    gap = offsets[1:] - ends[:-1]
    far = (gap < 0) | (gap > gap_bytes)
    # Where each payload lies if one endless buffer took all reads; ascending, whatever the offsets are.
    position = np.zeros(offsets.size, dtype=np.int64)
    np.cumsum(np.where(far, lengths[:-1], offsets[1:] - offsets[:-1]), out=position[1:])
    filled = position + lengths
    begin = 0
    while begin < offsets.size:
        limit = int(position[begin]) + chunk_bytes
        end = max(begin + 1, int(np.searchsorted(filled, limit, side="right")))
        cuts = np.flatnonzero(far[begin : end - 1]) + begin
        firsts, lasts = np.concatenate(([begin], cuts + 1)), np.concatenate((cuts, [end - 1]))
        yield Reads(
            begin=begin,
            end=end,
            offsets=offsets[firsts].tolist(),
            sizes=(ends[lasts] - offsets[firsts]).tolist(),
            starts=position[begin:end] - position[begin],
        )
        begin = end


def pack(data: memoryview, starts: RowArray, lengths: RowArray) -> memoryview:
    """The payloads at `starts` of `data`, one after the other: `data` itself if they lie so already, else a copy."""
    if not starts.size:
        return data[:0]
    ends = starts + lengths
    joined = starts[1:] == ends[:-1]
    if joined.all():
        return data[int(starts[0]) : int(ends[-1])]
    length = int(lengths[0])
    if length and np.all(lengths == length):
        # Every window of this length, without a copy; numpy then copies the chosen ones, a payload at a time.
        windows = np.ndarray((len(data) - length + 1,), dtype=np.dtype((np.void, length)), buffer=data, strides=(1,))
        chosen: npt.NDArray[np.void] = windows[starts]
        return chosen.view(np.uint8).data
    cuts = np.flatnonzero(~joined)
    begins, stops = starts[np.append(0, cuts + 1)].tolist(), ends[np.append(cuts, starts.size - 1)].tolist()
    return memoryview(b"".join([data[begin:stop] for begin, stop in zip(begins, stops, strict=True)]))
