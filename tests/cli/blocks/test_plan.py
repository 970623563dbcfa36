"""`compactor blocks plan` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from compaction.blocks.cli.options import time_text
from compaction.blocks.model import SECOND
from compaction.cli.main import main
from support.stores.block_commands import BlockCommands, block, policy_file


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
    for first, unit in enumerate(("ms", "us", "ns")):
        blocks.add_of(pa.timestamp(unit, "UTC"), *range(first, 18, 3))
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
