"""`compactor staging inspect`, `plan`, `compact`, `sweep` and `verify` as a user meets them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from compaction.staging.compaction import claim, work_on
from compaction.staging.refs.names import COMMIT_KEYS
from support.stores.staging_commands import StagingCommands


@pytest.fixture
def staged(staging: StagingCommands) -> StagingCommands:
    """A commit of 300 records, and a token that deletes 100 and adds 2."""
    staging.exec(
        [
            {"op": "set_many", "branch": "main", "values": {f"k/{number:03}": "v" for number in range(300)}},
            {"op": "commit", "branch": "main"},
            {"op": "delete_many", "branch": "main", "keys": [f"k/{number:03}" for number in range(100)]},
            {"op": "seal", "branch": "main"},
            {"op": "set_many", "branch": "main", "values": {"n/1": "new", "n/2": "new"}},
        ]
    )
    return staging


def objects(staging: StagingCommands) -> list[Path]:
    with staging.area() as area:
        folder = area.ranges.objects.folder
    assert folder is not None
    return sorted((folder / "_lakefs").iterdir())


def test_inspect_shows_tokens_counters_and_base(staged: StagingCommands) -> None:
    (row,) = staged.data("inspect")["items"]
    assert (row["name"], row["sealedTokens"], row["writes"], row["tombstones"]) == ("main", 1, 102, 100)
    assert row["compactedBase"] is row["claim"] is row["compactedBy"] is row["compactionStarted"] is None
    one = staged.data("inspect", "main")
    assert [(token["state"], token["writes"], token["tombstones"]) for token in one["tokens"]] == [
        ("staging", 2, 0),
        ("sealed", 100, 100),
    ]
    assert staged.does("inspect").splitlines()[0].startswith("BRANCH   COMMIT")
    assert "sealed" in staged.does("inspect", "main")
    assert staged.fails("inspect", "none") == 'error: branch "none" not found'


def test_plan_says_what_is_due_and_what_it_would_touch(staged: StagingCommands) -> None:
    staged.does("branch", "idle", "main")
    idle, main = staged.data("plan", "--tombstones", "100")["items"]
    assert (idle["due"], idle["work"], main["due"]) == (None, None, "100 tombstones")
    assert main["work"] == {"changes": 102, "tombstones": 100, "ranges": 1, "touchedRanges": 1} | {
        "touchedBytes": main["work"]["touchedBytes"]
    }
    assert staged.data("plan", "--tombstones", "101")["items"][1]["due"] is None
    reached = staged.data(
        "plan", "main", "--tombstones", "1", "--sealed-tokens", "1", "--writes", "102", "--bytes", "1"
    )
    assert reached["items"][0]["due"].startswith("100 tombstones, 1 sealed token, 102 writes, ")
    assert staged.does("plan", "--tombstones", "1").endswith("1 branch of 2 due\n")
    assert staged.data("plan", "--all")["items"][1]["work"]["changes"] == 102
    assert staged.run("plan", "--bytes", "many").exit_code == 2


def test_compact_changes_nothing_that_is_read(staged: StagingCommands) -> None:
    before = staged.data("list", "main"), staged.data("diff", "main")
    done = staged.data("compact", "main")["compacted"]
    assert (done["tokens"], done["added"], done["changed"], done["removed"]) == (2, 2, 0, 100)
    assert (staged.data("list", "main"), staged.data("diff", "main")) == before
    after = staged.data("inspect", "main")
    assert (after["sealedTokens"], after["writes"], after["compactedBase"]) == (0, 0, done["compactedBase"])
    assert after["compactedBy"]["job"] == done["job"]
    assert staged.data("compact", "main")["compacted"] is None
    assert staged.does("compact", "main") == "branch main: nothing is staged\n"
    staged.does("rm", "main", "k/100")
    assert "1 token compacted: 0 added, 0 changed, 1 removed; 1 range written" in staged.does("compact", "main")
    staged.does("commit", "main", "-m", "second")
    assert staged.data("diff", "main")["items"] == []


def test_a_branch_that_another_job_has_claimed_is_refused_or_taken_over(staged: StagingCommands) -> None:
    with staged.area() as area:
        record = area.branches.get("main").record
        claim(area, work_on("example", record, staged=True), job="another", token=7)
    assert staged.data("inspect", "main")["claim"] == {"job": "another", "token": 7}
    assert "is claimed by compaction another" in staged.fails("compact", "main")
    assert staged.data("compact", "main", "--take-over")["compacted"]["removed"] == 100
    assert staged.data("inspect", "main")["claim"] is None


def test_a_compaction_that_fails_gives_its_claim_up(staged: StagingCommands) -> None:
    listed = staged.data("list", "main", "--all")
    file = next(file for file in objects(staged) if file.stat().st_size > 1500)
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\0" + content[101:])
    assert "damaged at byte" in staged.fails("compact", "main")
    assert staged.data("inspect", "main")["claim"] is None
    file.write_bytes(content)
    staged.does("compact", "main")
    assert staged.data("list", "main", "--all") == listed


def test_a_sweep_deletes_what_nothing_leads_to_and_says_so_before(staged: StagingCommands) -> None:
    staged.does("compact", "main")
    staged.does("put", "main", "z", "--text", "x")
    staged.does("compact", "main")
    old = time.time() - 7200
    for file in objects(staged):
        os.utime(file, (old, old))
    before = objects(staged)
    listed = staged.data("list", "main", "--all")
    found = staged.data("sweep")["items"]
    assert {(item["kind"], item["due"]) for item in found} == {("token", False), ("object", True)}
    assert "nothing changed" in staged.does("sweep")
    assert objects(staged) == before
    swept = staged.data("sweep", "--apply")
    due = [item["name"] for item in found if item["due"]]
    assert (swept["objects"], swept["tokens"]) == (len(due), 0), "tokens are noted first"
    assert {file.name for file in before} - {file.name for file in objects(staged)} == set(due)
    assert staged.data("sweep", "--apply", "--grace", "0s")["tokens"] > 0
    assert staged.data("sweep")["items"] == []
    assert staged.data("list", "main", "--all") == listed
    assert staged.data("verify")["problems"] == []


def test_verify_reads_everything_and_names_each_problem(staged: StagingCommands) -> None:
    staged.does("compact", "main")
    staged.does("put", "main", "z", "--text", "x")
    clean = staged.data("verify")
    assert (clean["trees"], clean["ranges"], clean["records"], clean["rows"]) == (2, 2, 502, 1)
    assert staged.does("verify", "main").endswith("0 problems\n")
    files = objects(staged)
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
        (problem,) = json.loads(staged.run("verify", "-o", "json").stdout)["problems"]
        assert file.name in problem
        result = staged.run("verify")
        assert (result.exit_code, result.stderr.count("error: ")) == (1, 1)
        file.unlink()
        assert "does not exist" in staged.run("verify").stderr
        file.write_bytes(content)
    assert staged.data("verify") == clean


def test_verify_finds_rows_that_are_damaged_and_commits_that_say_something_else(staged: StagingCommands) -> None:
    staged.does("tag", "v1", "main")
    with staged.area() as area:
        token = area.branches.get("main").record.staging_token
        head = area.branches.get("main").record.commit_id
        area.kv.set(token, b"n/1", b"\xff")
        key = (COMMIT_KEYS + head).encode()
        row = area.kv.get(area.repository.partition, key)
        assert row is not None
        area.kv.set(area.repository.partition, key, row.replace(b"commit", b"COMMIT", 1))
    result = staged.run("verify")
    assert result.exit_code == 1
    assert f"error: branch main: {token}: row 'n/1': not a StagedEntryData" in result.stderr
    assert f"error: commit {head[:16]}: what it says has the id" in result.stderr
    with staged.area() as area:
        area.kv.delete(area.repository.partition, key)
    missing = staged.run("verify").stderr
    assert f"error: branch main: its commit {head} does not exist" in missing
    assert f"error: tag v1: its commit {head} does not exist" in missing
