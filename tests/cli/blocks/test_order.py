"""By what blocks are sorted, as commands say it and are told: `register`, `compact --sort-key`, a policy's sortKey."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from support.stores.block_commands import BlockCommands, in_folder, policy_file
from support.stores.blocks import parquet, rows


@pytest.fixture
def blocks(tmp_path: Path) -> BlockCommands:
    folder = tmp_path / "lake"
    folder.mkdir()
    return in_folder(folder)


def shuffled(count: int) -> pa.Table:
    return rows(count).take(pa.array([*range(count // 2, count), *range(count // 2)]))


def test_registration_says_which_order_it_found_and_why(blocks: BlockCommands) -> None:
    by_service = {"sorted_by": ["service", "time"], "row_group_size": 15}
    blocks.objects.put("declared.parquet", parquet(rows(100), **by_service))
    blocks.objects.put("found.parquet", parquet(rows(100)))
    blocks.objects.put("none.parquet", parquet(shuffled(100)))
    blocks.objects.put("wrong.parquet", parquet(shuffled(100), **by_service))
    register = ("register", "--tenant", "acme", "--assign-ids")
    found = {
        item["path"]: item
        for item in blocks.data(*register, "declared.parquet", "found.parquet", "none.parquet")["items"]
    }
    assert {path: (item["sortKey"], item["order"]) for path, item in found.items()} == {
        "declared.parquet": (["service", "time"], "service, time (declared)"),
        "found.parquet": (["time"], "time (found)"),
        "none.parquet": ([], "none (a merge sorts it, by time, the default)"),
    }
    shown = blocks.run(*register, "wrong.parquet", "--sort-key", "service,value").stdout
    breach = "declares service, time, but row 50 belongs before row 49"
    assert f"none (a merge sorts it, by service, value, as wanted; {breach})" in shown


def test_blocks_come_out_in_the_order_that_is_asked_for(blocks: BlockCommands) -> None:
    blocks.add(1, 2)
    assert blocks.run("compact", "--all", "--sort-key", "value,time").exit_code == 0
    (block,) = blocks.data("list")["items"]
    assert block["sortKey"] == ["value", "time"]


def test_a_policy_says_the_order_too(blocks: BlockCommands, tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml", blocks, sortKey=["value", "time"])
    blocks.objects.put("wanted.parquet", parquet(rows(100).sort_by("value")))
    given = ("register", "wanted.parquet", "--tenant", "acme", "--assign-ids", "-f", policy)
    twice = blocks.run(*given, "--sort-key", "time")
    assert twice.exit_code == 2
    assert "leave out --sort-key" in twice.stderr
    shown = blocks.run(*given)
    assert "value, time (as wanted)" in shown.stdout, shown.output
    refused = blocks.run("compact", "--all", "-f", policy, "--sort-key", "time")
    assert "leave out --sort-key" in refused.stderr


@pytest.mark.parametrize("text", ["", "a,", "a,a"])
def test_a_sort_key_is_names_of_columns_each_once(blocks: BlockCommands, text: str) -> None:
    result = blocks.run("compact", "--sort-key", text)
    assert result.exit_code == 2
    assert "such as series,ts" in result.stderr
