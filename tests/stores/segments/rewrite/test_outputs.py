"""What is written is read back: whatever is wrong with an output, and however it came to be, it is thrown away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory import fs
from compaction.segments.errors import SourcesChangedError, VerificationFailedError
from compaction.segments.generate import generate_log
from compaction.segments.model import HEADER_BYTES, SLOT_BYTES
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import CHUNK_BYTES, EntryBatch
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.rewriting.kernel import partial_file
from support.stores.segment_logs import leftovers

SLOT = SLOT_BYTES[2]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One group of three segments, a quarter live; a rewrite of it changes nothing."""
    made = generate_log(
        tmp_path_factory.mktemp("outputs") / "log",
        pattern="random",
        segments=4,
        entries_per_segment=64,
        payload_bytes=100,
        seed=5,
        sync=False,
    )
    return made.directory


def rewrite(log: Path) -> RewrittenGroup:
    state, limits = open_log(log), SegmentLimits()
    assert state.live is not None
    (group,) = plan_log(state, limits).groups
    return kernel.rewrite_group(log, sources=group.sources, live=state.live, limits=limits, job="job", token=1)


def flipped(at: int) -> Callable[[int], None]:
    """One bit is another one; `at` < 0 counts from the end."""

    def flip(fd: int) -> None:
        place = at if at >= 0 else os.fstat(fd).st_size + at
        os.pwrite(fd, bytes([os.pread(fd, 1, place)[0] ^ 1]), place)

    return flip


def cut(fd: int) -> None:
    os.ftruncate(fd, os.fstat(fd).st_size - 1)


def grown(fd: int) -> None:
    os.ftruncate(fd, os.fstat(fd).st_size + 1)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flipped(1), id="magic"),
        pytest.param(flipped(7), id="max_count"),
        *(pytest.param(flipped(HEADER_BYTES + SLOT * 3 + byte), id=f"slot-{byte}") for byte in (7, 15, 23, 27, 31)),
        pytest.param(flipped(-1), id="last-payload"),
        pytest.param(flipped(-4000), id="payload"),
        pytest.param(cut, id="cut"),
        pytest.param(grown, id="grown"),
    ],
)
def test_what_a_disk_changes_is_found(
    log: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[int], None]
) -> None:
    """Between the sync and the reading back; index, term, offset, length and CRC of a slot among it."""
    sync = fs.sync

    def lying_sync(fd: int) -> None:
        sync(fd)
        damage(fd)

    monkeypatch.setattr(fs, "sync", lying_sync)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log)
    assert leftovers(log) == []


def swapped(values: np.ndarray) -> np.ndarray:
    """Two neighbours stand in each other's place."""
    changed = values.copy()
    changed[[3, 4]] = values[[4, 3]]
    return changed


def longer(values: np.ndarray) -> np.ndarray:
    """One byte of an entry is counted for its neighbour."""
    changed = values.copy()
    changed[3], changed[4] = values[3] + 1, values[4] - 1
    return changed


@pytest.mark.parametrize(
    ("what", "change"),
    [("idx", swapped), ("crc", swapped), ("length", longer), ("term", lambda values: values + 1)],
)
def test_an_index_that_says_something_else_of_the_payloads_is_found(
    log: Path, monkeypatch: pytest.MonkeyPatch, what: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    """A mistake of our own: every byte is read back as it was written, and was written wrong."""
    full_head = kernel.full_head

    def wrong(**columns: Any) -> list[bytes]:
        return full_head(**(columns | {what: change(columns[what])}))

    monkeypatch.setattr(kernel, "full_head", wrong)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log)
    assert leftovers(log) == []


def test_an_index_that_points_elsewhere_is_found(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_head = kernel.full_head

    def wrong(**columns: Any) -> list[bytes]:
        header, records = full_head(**columns)
        changed = bytearray(records)
        changed[SLOT * 3 + 23] ^= 1
        return [header, bytes(changed)]

    monkeypatch.setattr(kernel, "full_head", wrong)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log)


def without_last(batches: list[EntryBatch]) -> list[EntryBatch]:
    return batches[:-1]


def twice(batches: list[EntryBatch]) -> list[EntryBatch]:
    return [batches[0], *batches]


def backwards(batches: list[EntryBatch]) -> list[EntryBatch]:
    return batches[::-1]


@pytest.mark.parametrize("change", [without_last, twice, backwards])
def test_payloads_that_are_missing_doubled_or_misplaced_are_found(
    log: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[EntryBatch]], list[EntryBatch]]
) -> None:
    picked_batches = kernel.picked_batches

    def kept(batch: EntryBatch) -> EntryBatch:
        """Batches are only valid until the next one."""
        return EntryBatch(batch.segment, batch.rows, memoryview(bytes(batch.data)), batch.lengths, batch.crcs)

    def wrong(*args: Any) -> Iterator[EntryBatch]:
        yield from change([kept(batch) for batch in picked_batches(*args)])

    monkeypatch.setattr(kernel, "picked_batches", wrong)
    with pytest.raises(VerificationFailedError, match="does not read back"):
        rewrite(log)
    assert leftovers(log) == []


def test_an_output_of_several_chunks_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = generate_log(
        tmp_path / "log", pattern="runs", segments=5, entries_per_segment=256, payload_bytes=20_000, sync=False
    ).directory
    assert rewrite(log).bytes_after > CHUNK_BYTES + 1000
    for at in (-1, -CHUNK_BYTES):
        sync = fs.sync
        with monkeypatch.context() as patch:

            def lying_sync(fd: int, at: int = at, sync: Callable[[int], None] = sync) -> None:
                sync(fd)
                flipped(at)(fd)

            patch.setattr(fs, "sync", lying_sync)
            with pytest.raises(VerificationFailedError, match="does not read back"):
                rewrite(log)


def test_a_source_that_its_owner_deletes_meanwhile_has_changed(tmp_path: Path) -> None:
    """Not an input/output error, which would be a reason to look at the disk; and no file is left."""
    partial = tmp_path / "0000000000000001.job.1.partial"
    with (
        pytest.raises(SourcesChangedError, match=r"0000000000000001.segment: deleted while it was compacted"),
        partial_file(partial, like=tmp_path / "0000000000000001.segment"),
    ):
        pass
    assert not partial.exists()
