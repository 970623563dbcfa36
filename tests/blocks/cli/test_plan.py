"""`compactor blocks plan` as a user meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from compaction.blocks.cli.options import time_text
from compaction.blocks.index.queued import Fault
from compaction.blocks.model import SECOND
from compaction.cli.main import main
from support.blocks.block_commands import BlockCommands, block, in_folder, policy_file
from support.blocks.blocks import parquet, rows


def test_what_is_due_is_planned_and_the_rest_has_a_reason(blocks: BlockCommands) -> None:
    ids = blocks.add(*range(1, 26))
    blocks.add(30, tenant="other")
    planned = blocks.data("plan")
    (job,) = planned["jobs"]
    assert (job["tenant"], job["level"], job["outputLevel"], job["sources"]) == ("acme", 0, 1, ids[:20])
    assert (planned["debt"]["sources"], planned["debt"]["measures"]["liveBlocks"]) == (20, 26)
    assert {row["reason"]: row["count"] for row in planned["leftOut"]} == {"WaitingForMore": 6}
    assert yaml.safe_load(blocks.run("plan", "-o", "yaml").stdout) == planned
    table = blocks.run("plan").stdout
    assert "1 job would merge 20 blocks with" in table
    assert "WaitingForMore" in table
    assert blocks.data("plan") == planned


def test_everything_that_waits_is_planned_when_asked(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2, 3)
    assert blocks.data("plan")["jobs"] == []
    said = blocks.run("plan").stdout.splitlines()[0]
    assert said.startswith("nothing is due yet: 3 blocks (")
    assert said.endswith(", or when 17 more have come. Merge now: compactor blocks compact --all")
    (job,) = blocks.data("plan", "--all")["jobs"]
    assert job["sources"] == ids
    pairs = blocks.data("plan", "--levels", "2:1h,2:1h")["jobs"]
    assert [pair["sources"] for pair in pairs] == [ids[:2]]
    windows = blocks.data("plan", "--all", "--span", "1ms")["jobs"]
    assert [window["sources"] for window in windows] == [ids]


def test_a_single_block_is_left_alone_with_the_reason(blocks: BlockCommands) -> None:
    blocks.add(1)
    planned = blocks.data("plan", "--all")
    assert planned["jobs"] == []
    assert [row["reason"] for row in planned["leftOut"]] == ["NothingToMergeWith"]


def test_a_policy_says_how(blocks: BlockCommands, tmp_path: Path) -> None:
    ids = blocks.add(1, 2, 3)
    levels = [{"maxBlocks": 3, "maxAge": "1h"}]
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=levels)
    result = blocks.data("plan", "-f", file)
    assert [item["sources"] for item in result["jobs"]] == [ids]
    assert blocks.run("plan", "-f", file, "--levels", "2:1h").exit_code == 2
    assert "leave out --levels" in blocks.run("plan", "-f", file, "--levels", "2:1h").stderr


def test_options_that_no_policy_can_have_are_wrong_usage(blocks: BlockCommands) -> None:
    blocks.add(1)
    for options in (("--levels", "1:1h"), ("--levels", "many"), ("--span", "0s"), ("--memory", "much")):
        result = blocks.run("plan", *options)
        assert result.exit_code == 2, result.output


def test_a_plan_changes_nothing(blocks: BlockCommands) -> None:
    blocks.add(1, 2)
    with blocks.opened() as store:
        before = store.queue()
    blocks.data("plan", "--all")
    with blocks.opened() as store:
        assert store.queue() == before
        assert store.open_jobs() == ()


def test_blocks_of_open_jobs_are_left_to_them(blocks: BlockCommands) -> None:
    one, two, *rest = blocks.add(1, 2, 3, 4)
    with blocks.opened() as store:
        store.claim(job="somebody-else", token=1, sources=[one, two], output_level=1)
    planned = blocks.data("plan", "--all")
    assert [job["sources"] for job in planned["jobs"]] == [rest]
    left = {row["reason"]: (row["count"], row["example"]) for row in planned["leftOut"]}
    assert left == {"JobUnfinished": (2, "somebody-else")}
    with blocks.opened() as store:
        assert [job.job for job in store.open_jobs()] == ["somebody-else"]


def test_a_plan_says_when_blocks_are_due_and_how_many_are_missing(blocks: BlockCommands) -> None:
    blocks.add(*range(1, 26))
    blocks.add(30, 31, tenant="other")
    planned, waiting = blocks.data("plan", "--levels", "20:10m"), blocks.data("list")["items"]
    (row,) = planned["leftOut"]
    assert (row["reason"], row["count"], row["missing"]) == ("WaitingForMore", 7, 15)
    assert row["bytes"] == sum(item["bytes"] for item in waiting) - planned["debt"]["bytes"]
    with blocks.opened() as store:
        first = min(entry.at for entry in store.queue().entries)
    assert row["due"] == time_text(first + 600 * SECOND)


def test_plan_and_inspect_agree(blocks: BlockCommands) -> None:
    """What is due is due in both, and what waits waits in both, whatever is in open jobs."""
    blocks.add(*range(1, 26))
    alone = blocks.add(30, tenant="other")
    with blocks.opened() as store:
        store.claim(job="somebody-else", token=1, sources=[block(1), block(2), block(3)], output_level=1)
    planned, debt = blocks.data("plan"), blocks.data("inspect")
    left = {row["reason"]: row for row in planned["leftOut"]}
    in_jobs = sum(row["inJobs"] for row in debt["items"])
    assert (in_jobs, debt["due"]) == (3, sum(len(job["sources"]) for job in planned["jobs"])) == (3, 20)
    assert planned["debt"]["sources"] == debt["due"] + in_jobs
    waits = left["WaitingForMore"]
    assert debt["blocks"] - debt["due"] - in_jobs == waits["count"] == 3
    rows = [row for row in debt["items"] if row["nextDue"] is not None]
    assert min(row["nextDue"] for row in rows) == waits["due"]
    assert min(row["missing"] for row in rows) == waits["missing"]
    assert {row["tenant"]: row["oldest"] for row in rows}.keys() == {"acme", "other"}
    assert alone == [block(30)]


def test_a_finished_compaction_leaves_nothing_that_looks_like_a_problem(blocks: BlockCommands) -> None:
    blocks.add(1, 2, 3)
    result = blocks.run("compact", "--all")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "NothingToMergeWith" not in result.stdout
    said = "1 block stays as it is until others come to be merged with"
    again = blocks.run("compact", "--all")
    assert (again.exit_code, again.stdout.splitlines()) == (0, ["nothing is due; 1 block live", said])
    assert blocks.run("plan", "--all").stdout.splitlines() == ["nothing is due, and nothing waits", said]


def test_what_schemas_keep_apart_is_said_once_everywhere(blocks: BlockCommands, tmp_path: Path) -> None:
    """Eighteen blocks of three units of time: three merges of six, and then nothing can be done because of it."""
    for start, unit in enumerate(("ms", "us", "ns")):
        blocks.add_of(pa.timestamp(unit, "UTC"), *range(start, 18, 3))
    kinds = " | ".join(f"timestamp[{unit}, tz=UTC]" for unit in ("ms", "ns", "us"))
    said = f"3 schemas of `acme` cannot be merged: column time {kinds}"
    planned = blocks.data("plan", "--all")
    assert [len(job["sources"]) for job in planned["jobs"]] == [6, 6, 6]
    assert [item["message"] for item in planned["conflicts"]] == [said]
    assert [item["message"] for item in blocks.data("inspect")["schemaConflicts"]] == [said]
    assert blocks.data("inspect", "--tenant", "other")["schemaConflicts"] == []
    for command in (["plan", "--all"], ["inspect"]):
        assert blocks.run(*command).stdout.count(said) == 1
    first = blocks.run("compact", "--all")
    assert (first.exit_code, first.stderr, first.stdout.count(said)) == (0, "", 1)
    assert "3 of 3 jobs succeeded, 18 blocks merged into 3" in first.stdout
    again = blocks.run("compact", "--all")
    assert again.exit_code == 1
    assert again.stderr == f"error: {said}; nothing of 3 blocks could be merged because of it\n"
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=[{"maxBlocks": 9, "maxAge": "1ms"}] * 3)
    with pytest.raises(SystemExit) as end:
        main(["run", "-f", str(file)])
    assert end.value.code == 1


# By what blocks are sorted, as commands say it and are told: `register`, `compact --sort-key`, a policy's sortKey.


@pytest.fixture
def blocks(tmp_path: Path) -> BlockCommands:
    folder = tmp_path / "lake"
    folder.mkdir()
    return in_folder(folder)


def shuffled(count: int) -> pa.Table:
    return rows(count).take(pa.array([*range(count // 2, count), *range(count // 2)]))


def test_registration_says_which_order_it_found_and_why(blocks: BlockCommands) -> None:
    by_service: dict[str, Any] = {"sorted_by": ["service", "time"], "row_group_size": 15}
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


# `compactor blocks inspect` says why this very block is not merged.


def why(blocks: BlockCommands, number: int, *args: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = blocks.data("inspect", block(number), *args)["notMerged"]
    return found


def test_a_block_that_waits_is_told_for_what_and_until_when(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.add(1, 2, 3)
    blocks.add(4, tenant="other")
    waits = why(blocks, 1)
    assert waits["reason"] == "WaitingForMore"
    assert waits["message"].startswith("it waits with 2 others at level 0 for 17 more, or is merged at 20")
    assert waits["due"].endswith("Z")
    alone = why(blocks, 4)
    assert "it waits alone at level 0 for 19 more, or goes on to the next level at 20" in alone["message"]
    assert f"WaitingForMore: {alone['message']}".split(", in ")[0] in blocks.run("inspect", block(4)).stdout
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=[{"maxBlocks": 3, "maxAge": "1ms"}])
    assert why(blocks, 1, "-f", file) == {
        "reason": "Due", "message": "the next run merges it with 2 others at level 0", "due": None,
    }  # fmt: skip
    nothing = why(blocks, 4, "-f", file)
    assert nothing["reason"] == "NothingToMergeWith"
    assert nothing["message"] == (
        "no other block of tenant other, shard 0 with a schema that fits begins in its window, "
        "1970-01-01T00:00:00.000000Z to 1970-01-01T03:00:00.000000Z"
    )


def test_a_block_that_is_done_is_told_why(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.add(1)
    small = policy_file(tmp_path / "small.yaml", blocks, levels=[{"maxBlocks": 3, "maxAge": "1h", "maxBytes": "1Ki"}])
    large = why(blocks, 1, "-f", small)
    assert large["reason"] == "LargeEnough"
    assert large["message"].endswith(" are enough: readers gain nothing from a larger one")
    blocks.add(3)
    blocks.data("compact", "--all", "--levels", "2:1h,2:1h,2:1h,2:1h")
    (merged,) = blocks.data("list")["items"]
    one = policy_file(tmp_path / "one.yaml", blocks, levels=[{"maxBlocks": 3, "maxAge": "1h"}])
    highest = blocks.data("inspect", merged["id"], "-f", one)["notMerged"]
    assert highest["reason"] == "HighestLevel"
    assert highest["message"] == f"it is of level {merged['level']} and has come through all 1 that are merged"
    assert blocks.data("inspect", block(1))["notMerged"] is None, "it is replaced"


def test_a_block_that_somebody_has_is_told_who(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    with blocks.opened() as store:
        store.claim(job="theirs", token=1, sources=[one], output_level=1)
        store.set_aside({two: Fault("SourceCorrupt", "x")})
    held = why(blocks, 1)
    assert held["reason"] == "InJob"
    assert held["message"].startswith("job theirs has 1 block since 0s: claimed by a cluster")
    aside = why(blocks, 2)
    assert aside["reason"] == "Quarantined"
    assert aside["message"] == f"it is quarantined (SourceCorrupt): `quarantine {two} --release` when the cause is gone"


def test_a_block_without_rows_is_told_that_it_goes(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.data("register", blocks.write(1, count=0), "--tenant", "acme")
    assert why(blocks, 1)["message"].startswith("it has no rows, and is dropped at 20")
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=[{"maxBlocks": 3, "maxAge": "1ms"}])
    assert why(blocks, 1, "-f", file)["message"] == "it has no rows: the next run drops it"
    done = blocks.run("compact", "--all").stdout
    assert "1 of 1 job succeeded, 1 block without rows dropped; 0 blocks live" in done
