"""`compactor blocks compact` as a user meets it: merged, proved, and everything that can be wrong with a source."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from compaction.blocks.format.int96 import Int96Reading
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.model import RowFingerprint, block_path
from support.blocks.block_commands import KEY, BlockCommands, block, policy_file
from support.blocks.blocks import parquet


def content(blocks: BlockCommands) -> RowFingerprint:
    """Of all live blocks, as they are read back now."""
    verified = blocks.data("verify")
    assert verified["bad"] == 0
    listed = [RowFingerprint.parse(item["fingerprint"]) for item in blocks.data("list")["items"]]
    return sum(listed, RowFingerprint())


def test_blocks_are_merged_level_by_level_and_hold_the_same_rows(blocks: BlockCommands) -> None:
    blocks.add(*range(1, 9))
    before = content(blocks)
    result = blocks.data("compact", "--levels", "2:1h,2:1h,2:1h")
    assert (len(result["jobs"]), result["succeeded"]) == (7, True)
    assert {job["verified"] for job in result["jobs"]} == {"equal"}
    (left,) = blocks.data("list")["items"]
    assert (left["level"], left["rows"]) == (3, 400)
    assert content(blocks) == before
    assert [(job["level"], job["merged"], job["into"]) for job in result["jobs"]].count((0, 2, 1)) == 4
    assert blocks.data("sweep")["tombstones"]["blocks"] == 14
    assert blocks.run("compact", "--levels", "2:1h,2:1h,2:1h").stdout.startswith("nothing is due; 1 block live")


def test_only_what_is_due_is_merged(blocks: BlockCommands) -> None:
    blocks.add(*range(1, 23))
    assert len(blocks.data("compact", "--jobs", "2")["jobs"]) == 1
    assert sorted(item["level"] for item in blocks.data("list")["items"]) == [0, 0, 1]
    table = blocks.run("compact", "--all").stdout
    assert "2 of 2 jobs succeeded, 4 blocks merged into 2; 1 block live" in table  # of level 0, then of level 1
    assert "equal" in table


def test_tenants_are_never_mixed(blocks: BlockCommands) -> None:
    blocks.add(1, 2)
    blocks.add(3, 4, tenant="other")
    blocks.data("compact", "--all")
    assert sorted((item["tenant"], item["rows"]) for item in blocks.data("list")["items"]) == [
        ("acme", 100),
        ("other", 100),
    ]


def test_a_policy_of_a_file_is_run_without_its_approval(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.add(1, 2, 3)
    levels = [{"maxBlocks": 3, "maxAge": "1h"}]
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=levels, spec={"approval": "Manual"})
    assert len(blocks.data("compact", "-f", file)["jobs"]) == 1
    assert [item["level"] for item in blocks.data("list")["items"]] == [1]


def test_duplicates_are_dropped_and_counted_when_asked(blocks: BlockCommands) -> None:
    blocks.add(1, 2)
    blocks.data("compact", "--all", "--deduplicate", "service", "--grace", "0s")
    (left,) = blocks.data("list")["items"]
    assert left["rows"] == 10  # services of 10 rows each, in 100 rows


def spoiled(blocks: BlockCommands, path: str, how: str) -> None:
    data = blocks.objects.get(path)
    match how:
        case "missing":
            blocks.objects.delete([path])
        case "truncated":
            blocks.objects.put(path, data[:-30])
        case "foreign":
            other = blocks.write(90, tenant="elsewhere")
            blocks.objects.put(path, blocks.objects.get(other))
        case "no Parquet":
            blocks.objects.put(path, b"x" * len(data))


@pytest.mark.parametrize("how", ["missing", "truncated", "foreign", "no Parquet"])
def test_one_bad_block_is_named_and_the_others_are_merged(blocks: BlockCommands, how: str) -> None:
    ids = blocks.add(1, 2, 3, 4)
    bad = ids[1]
    path = blocks.data("inspect", bad)["path"]
    spoiled(blocks, path, how)
    result = blocks.run("compact", "--all", "-o", "json")
    assert result.exit_code == 1, result.output
    assert path in result.stderr or bad in result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    assert [each["source"] for each in data["quarantined"]] == [bad]
    assert [item["block"] for item in blocks.data("quarantine")["items"]] == [bad]
    live = blocks.data("list")["items"]
    assert sorted((item["level"], item["rows"]) for item in live) == [(0, 50), (1, 150)]
    assert blocks.run("compact", "--all").exit_code == 0


def test_blocks_of_an_open_job_are_left_to_it_until_it_is_given_up(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2, 3, 4)
    with blocks.opened() as store:
        store.claim(job="somebody-else", token=7, sources=ids[:2], output_level=1)
    result = blocks.run("compact", "--all", "-o", "json")
    assert "job somebody-else has 2 blocks since" in result.stderr
    data = json.loads(result.stdout)
    assert [job["sources"] for job in data["jobs"]] == [ids[2:]]
    assert [row["reason"] for row in data["leftOut"] if row["example"] == "somebody-else"] == ["JobUnfinished"]
    taken = blocks.run("compact", "--all", "--take-over", "-o", "json")
    assert "job somebody-else: given up" in taken.stderr
    assert json.loads(taken.stdout)["jobs"][0]["sources"] == ids[:2]
    assert sum(item["rows"] for item in blocks.data("list")["items"]) == 200


def test_replaced_blocks_are_deleted_after_the_grace(blocks: BlockCommands) -> None:
    blocks.add(1, 2)
    blocks.data("compact", "--all", "--grace", "0s")
    assert blocks.data("sweep")["tombstones"]["blocks"] == 0
    listed = [item["path"] for item in blocks.data("list")["items"]]
    assert [info.path for info in blocks.objects.list("acme")] == listed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--deduplicate", "nosuch"), "sort key column nosuch: none of the blocks has it"),
        (("--memory", "1Mi"), "1048576 bytes of memory are too few for a merge, which takes 16777216"),
    ],
)
def test_a_merge_that_cannot_be_is_refused_in_one_line(
    blocks: BlockCommands, options: tuple[str, ...], said: str
) -> None:
    blocks.add(1, 2, 3, 4)
    result = blocks.run("compact", "--all", *options, "-o", "json")
    assert result.exit_code == 1
    assert [(job["state"], job["reason"]) for job in json.loads(result.stdout)["jobs"]] == [("Faulty", "InvalidJob")]
    (line,) = result.stderr.splitlines()
    assert line.endswith(said)
    with blocks.opened() as store:
        assert store.open_jobs() == ()


INTERRUPTED = """
import os, signal, sys, time
from compaction.blocks.cli.compact import interrupts
with interrupts():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    finally:
        for _ in range(int(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
"""


@pytest.mark.parametrize("again", [0, 1])
def test_a_second_interrupt_does_not_wait_for_the_merge(again: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(again)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("interrupted: waiting for the merge that runs; again: do not wait\n")
    assert ended.returncode == (130 if again else -signal.SIGINT)


def add_times(blocks: BlockCommands, number: int, unit: str, moments: list[int | None]) -> None:
    """A block of another writer, whose column `until` is INT96."""
    times = pa.array(range(100 * number, 100 * number + len(moments)), pa.int64())
    until = pa.array(moments, pa.timestamp(unit))
    table = pa.table({"service": ["a"] * len(moments), "time": times, "until": until})
    said = BlockMetadata(id=block(number), tenant="acme", shard=0, level=0, sort_key=KEY, time_column="time")
    path = block_path("acme", 0, block(number))
    blocks.objects.put(path, parquet(table, said, use_deprecated_int96_timestamps=True, store_schema=False))
    blocks.data("register", path, "--tenant", "acme")


def live_rows(blocks: BlockCommands, folder: Path) -> list[Any]:
    """As DuckDB reads them."""
    folder.mkdir()
    for item in blocks.data("list")["items"]:
        (folder / f"{item['id']}.parquet").write_bytes(blocks.objects.get(item["path"]))
    with duckdb.connect() as connection:
        return connection.sql(f"select time, until::varchar from '{folder}/*.parquet' order by time").fetchall()


def test_times_of_several_writers_become_one_block_wherever_a_unit_holds_them(
    blocks: BlockCommands, tmp_path: Path
) -> None:
    """INT96: ordinary dates go with digits of nanoseconds or with 9999-12-31, and these two stay apart, with the
    reason; so it is when outputs are merged with blocks that come later.
    """
    distant, fine = [253_402_297_200_000_000, None], [1_700_000_000_123_456_789, None]
    ordinary: list[int | None] = [10**15, -1]
    add_times(blocks, 1, "us", ordinary)
    add_times(blocks, 2, "ns", fine)
    assert blocks.data("plan", "--all")["conflicts"] == []
    rows = live_rows(blocks, tmp_path / "0")
    blocks.data("compact", "--all", "--levels", "2:1h")
    assert [item["rows"] for item in blocks.data("list")["items"]] == [4]
    assert live_rows(blocks, tmp_path / "1") == rows
    for number in (3, 4):
        add_times(blocks, number, "us", ordinary)
    blocks.data("compact", "--all", "--levels", "2:1h")
    for number, (unit, moments) in enumerate([("ns", fine), ("us", ordinary), ("us", distant), ("us", distant)], 5):
        add_times(blocks, number, unit, moments)
    kinds = "timestamp[ns] (INT96, some finer than microseconds) | timestamp[us] (INT96 beyond the years 1677 to 2262)"
    said = f"2 schemas of `acme` cannot be merged: column until {kinds}"
    assert [each["message"] for each in blocks.data("plan", "--all")["conflicts"]] == [said]
    rows, before = live_rows(blocks, tmp_path / "2"), content(blocks)
    assert blocks.data("compact", "--all", "--levels", "9:1h,9:1h")["succeeded"]
    assert sorted(item["rows"] for item in blocks.data("list")["items"]) == [4, 12]
    assert (live_rows(blocks, tmp_path / "3"), content(blocks)) == (rows, before)
    assert "9999-12-31 23:00:00" in str(rows)
    assert "1969-12-31 23:59:59.999999" in str(rows)


def test_blocks_whose_schema_in_the_index_does_not_say_how_int96_is_read_are_verified_and_merged(
    blocks: BlockCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were registered before it did."""
    with monkeypatch.context() as patched:
        patched.setattr(Int96Reading, "meanings", lambda _, leaves: list(leaves))
        add_times(blocks, 1, "us", [1, None])
    add_times(blocks, 2, "us", [2, None])
    add_times(blocks, 3, "us", [253_402_297_200_000_000])
    schemas = {item["schema"] for item in blocks.data("list")["items"]}
    assert len(schemas) == 3
    before = content(blocks)
    blocks.data("compact", "--all")
    assert [item["rows"] for item in blocks.data("list")["items"]] == [5]
    assert content(blocks) == before
