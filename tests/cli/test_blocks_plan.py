"""`compactor blocks plan` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import yaml

from support.block_commands import BlockCommands, policy_file


def test_what_is_due_is_planned_and_the_rest_has_a_reason(blocks: BlockCommands) -> None:
    ids = blocks.add(*range(1, 26))
    blocks.add(30, tenant="other")
    planned = blocks.data("plan")
    (job,) = planned["jobs"]
    assert (job["tenant"], job["level"], job["outputLevel"], job["blocks"]) == ("acme", 0, 1, ids[:20])
    assert (planned["debt"]["blocks"], planned["debt"]["liveBlocks"]) == (20, 26)
    assert {row["reason"]: row["count"] for row in planned["leftOut"]} == {"WaitingForMore": 6}
    assert yaml.safe_load(blocks.run("plan", "-o", "yaml").stdout) == planned
    table = blocks.run("plan").stdout
    assert "1 job would merge 20 blocks with" in table
    assert "WaitingForMore" in table
    assert blocks.data("plan") == planned


def test_everything_that_waits_is_planned_when_asked(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2, 3)
    assert blocks.data("plan")["jobs"] == []
    assert "nothing is planned (no debt)" in blocks.run("plan").stdout
    (job,) = blocks.data("plan", "--all")["jobs"]
    assert job["blocks"] == ids
    pairs = blocks.data("plan", "--levels", "2:1h,2:1h")["jobs"]
    assert [one["blocks"] for one in pairs] == [ids[:2]]
    windows = blocks.data("plan", "--all", "--span", "1ms")["jobs"]
    assert [one["blocks"] for one in windows] == [ids]


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
    assert [one["blocks"] for one in result["jobs"]] == [ids]
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
    assert [job["blocks"] for job in planned["jobs"]] == [rest]
    left = {row["reason"]: (row["count"], row["example"]) for row in planned["leftOut"]}
    assert left == {"JobUnfinished": (2, "somebody-else")}
    with blocks.opened() as store:
        assert [job.job for job in store.open_jobs()] == ["somebody-else"]
