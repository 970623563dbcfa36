"""The low watermark grows only, waits for readers that are older, is saved before it counts, and survives a restart."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import WatermarkFileError
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.watermark import LowWatermark, WatermarkFile, WatermarkMemory, WatermarkSettings

SETTINGS = WatermarkSettings(availability=1000, update=500, skew=10)


def started(saved: int = UNDEFINED, earliest: int = 1) -> LowWatermark:
    watermark = LowWatermark(WatermarkMemory(saved), SETTINGS)
    watermark.start(earliest)
    return watermark


def test_the_candidate_is_the_clock_less_availability_and_skew() -> None:
    watermark = started()
    assert watermark.value == UNDEFINED
    assert watermark.update(hybrid(5000, 7)) == hybrid(3990, 7)
    assert watermark.update(hybrid(4999)) == hybrid(3990, 7), "a clock that goes back moves nothing"
    assert watermark.update(hybrid(6000)) == hybrid(4990)


def test_a_clock_younger_than_the_availability_leaves_it_undefined() -> None:
    assert started().update(hybrid(1000)) == UNDEFINED


def test_it_waits_for_readers_that_are_older_and_for_no_others() -> None:
    watermark = started()
    assert watermark.acquire("a", hybrid(100))
    assert watermark.acquire("b", hybrid(3990))
    assert watermark.update(hybrid(5000)) == UNDEFINED
    assert watermark.waiting
    watermark.release("a")
    assert watermark.value == hybrid(3990), "a reader at the watermark reads what is kept"
    assert not watermark.waiting
    assert watermark.update(hybrid(6000)) == hybrid(3990)
    watermark.release("b")
    assert watermark.value == hybrid(4990)


def test_readers_below_it_or_below_where_it_goes_are_refused() -> None:
    watermark = started()
    watermark.acquire("a", hybrid(100))
    watermark.update(hybrid(5000))
    assert not watermark.acquire("late", hybrid(200)), "or it would wait for ever"
    assert watermark.acquire("b", hybrid(4000))
    watermark.release("a")
    watermark.release("never came")
    assert not watermark.acquire("late", hybrid(3989))


def test_listeners_hear_each_value_once_and_in_order() -> None:
    watermark = started()
    heard: list[int] = []

    def further(value: int) -> None:
        heard.append(value)
        if len(heard) < 3:
            watermark.raise_to(value + 1)

    watermark.listen(further)
    watermark.raise_to(10)
    watermark.raise_to(5)
    assert heard == [10, 11, 12]


def test_restart_reads_what_was_saved(tmp_path: Path) -> None:
    file = WatermarkFile(tmp_path / "watermark")
    first = LowWatermark(file, SETTINGS)
    assert first.start(earliest=50) == UNDEFINED, "one that was never set stays undefined"
    first.update(hybrid(5000))
    assert LowWatermark(file, SETTINGS).start(earliest=1) == hybrid(3990)


def test_a_node_that_was_down_during_a_compaction_is_raised_to_the_earliest_version(tmp_path: Path) -> None:
    file = WatermarkFile(tmp_path / "watermark")
    file.save(30)
    assert LowWatermark(file, SETTINGS).start(earliest=70) == 70
    assert file.load() == 70


@pytest.mark.parametrize("content", [b"", b"-5\n", b"12 34", b"0\n", b"9" * 30, b"\xff", b"9223372036854775808\n"])
def test_a_file_with_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "watermark"
    path.write_bytes(content)
    with pytest.raises(WatermarkFileError, match="does not hold a hybrid timestamp"):
        WatermarkFile(path).load()


def test_what_cannot_be_saved_does_not_count(tmp_path: Path) -> None:
    watermark = LowWatermark(WatermarkFile(tmp_path / "missing" / "watermark"), SETTINGS)
    heard: list[int] = []
    watermark.listen(heard.append)
    with pytest.raises(WatermarkFileError, match="No such file"):
        watermark.raise_to(5)
    assert (watermark.value, heard) == (UNDEFINED, [])
    (tmp_path / "missing").mkdir()
    assert watermark.raise_to(4) == 5, "and the next attempt goes where it was to go"
    with pytest.raises(WatermarkFileError):
        WatermarkFile(tmp_path).load()


def test_updates_go_on_until_they_are_stopped() -> None:
    watermark, stop = started(), threading.Event()
    clock = iter(range(hybrid(5000), hybrid(9000)))
    watermark.listen(lambda _: stop.set())
    thread = threading.Thread(target=watermark.keep_updating, args=(lambda: next(clock), stop))
    thread.start()
    thread.join()
    assert watermark.value == hybrid(3990)


STEPS = st.lists(st.tuples(st.sampled_from(["raise", "acquire", "release"]), st.integers(0, 5), st.integers(1, 40)))


@given(STEPS)
def test_no_reader_that_was_let_in_is_ever_overtaken(steps: list[tuple[str, int, int]]) -> None:
    watermark, readers, asked = started(), dict[int, int](), 0
    for kind, reader, timestamp in steps:
        before = watermark.value
        if kind == "raise":
            watermark.raise_to(timestamp)
            asked = max(asked, timestamp)
        elif kind == "acquire" and reader not in readers:
            if watermark.acquire(reader, timestamp):
                readers[reader] = timestamp
            else:
                assert timestamp < asked
        elif kind == "release":
            readers.pop(reader, None)
            watermark.release(reader)
        assert watermark.value >= before
        assert all(watermark.value <= held for held in readers.values())
    for reader in list(readers):
        watermark.release(reader)
    assert not watermark.waiting


def test_threads_move_it_one_at_a_time() -> None:
    watermark, heard = started(), list[int]()
    watermark.listen(heard.append)
    threads = [
        threading.Thread(target=lambda start=start: [watermark.raise_to(n) for n in range(start, 2000, 7)])
        for start in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == sorted(set(heard))
    assert watermark.raise_to(2000) == 2000
