"""Columns that only the folders of a file hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from compaction.blocks.errors import UnsuitableBlockError
from compaction.blocks.index.registering import KnownPath
from compaction.blocks.index.tables import BlockState
from compaction.blocks.registration.foreign import assigned_id, known_files, lost_columns, refuse_lost_columns
from compaction.storage.objects.store import ObjectInfo
from support.stores.block_index import a_block

DAY = 86_400_000_000
NOON = 1_793_491_200_000_000 + DAY // 2
"""Of 2026-11-01, in UTC."""


@pytest.mark.parametrize(
    ("path", "times", "instants", "refused"),
    [
        ("date=2026-11-01/a.parquet", (NOON, NOON + 1), True, ""),
        ("lake/dt=2026-11-01/a.parquet", (NOON - DAY // 2, NOON + DAY // 2 - 1), True, ""),
        ("year=2026/month=11/day=01/hour=12/a.parquet", (NOON, NOON + 5), True, ""),
        ("Year=2026/Month=11/a.parquet", (NOON, NOON + 20 * DAY), True, ""),
        ("date=2026-11-01/a.parquet", (NOON, NOON + 1), False, "'date' .*its times have no time zone to prove it by"),
        ("date=2026-11-01/a.parquet", (NOON, NOON + DAY), True, "'date'"),
        ("date=2026-11-02/a.parquet", (NOON, NOON), True, "'date'"),
        ("date=2026-11-01/region=eu/a.parquet", (NOON, NOON), True, "'region'"),
        ("day=1/a.parquet", (NOON, NOON + 30 * DAY), True, "'day'"),
        ("month=11/a.parquet", (NOON, NOON + 365 * DAY), True, "'month'"),
        ("year=2026/month=10/day=1/a.parquet", (NOON, NOON), True, "'month'"),
        ("date=20261101/a.parquet", (NOON, NOON), True, "'date'"),
        ("date=2026-11-01/a.parquet", (-(2**62), 2**62), True, "'date'"),
    ],
)
def test_a_column_of_the_path_is_no_loss_where_all_times_prove_it(
    path: str, times: tuple[int, int], instants: bool, refused: str
) -> None:
    lost = lost_columns(path, ("ts", "id"))
    assert lost
    if not refused:
        refuse_lost_columns(path, lost, times, instants)
        return
    with pytest.raises(UnsuitableBlockError, match=refused):
        refuse_lost_columns(path, lost, times, instants)


WRITTEN = datetime(2026, 11, 1, 12, 0, 7, 345_678, UTC)


@pytest.mark.parametrize("micros", [0, 345_000, 345_678], ids=["a HEAD", "a listing", "a folder"])
def test_a_file_is_the_same_however_exactly_its_time_is_said(micros: int) -> None:
    """MinIO, Ceph and Google say milliseconds in a listing and seconds in the answer to a HEAD."""
    head, found = (ObjectInfo("lake/a.parquet", 10, "", WRITTEN.replace(microsecond=item)) for item in (0, micros))
    assert assigned_id(found) == assigned_id(head)
    block = replace(a_block(1), id=assigned_id(head), path=head.path, bytes=10)
    second = int(WRITTEN.timestamp()) * 1_000_000
    for changed_at, same in ((second + 345_677, False), (second + 1_000_000, True)):
        known = {head.path: KnownPath(block, BlockState.LIVE, changed_at)}
        assert known_files([found], known, {head.path: assigned_id(found)}) == (known if same else {}, {})
