"""`compactor blocks debt`, `tombstones` and `quarantine` as a user meets them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

from compaction.blocks.index.queued import Fault
from compaction.blocks.index.tombstones import failed
from support.stores.block_commands import BlockCommands, block, policy_file


def test_debt_is_told_by_level_and_tenant(blocks: BlockCommands) -> None:
    blocks.add(1, 2, 3)
    assert blocks.run("debt", "--tenant", "nobody").stdout == "nothing waits\n"
    blocks.add(4, tenant="other")
    found = blocks.data("debt")
    assert [(item["level"], item["tenant"], item["blocks"]) for item in found["items"]] == [
        (0, "acme", 3),
        (0, "other", 1),
    ]
    assert found["blocks"] == 4
    assert found["bytes"] == sum(item["bytes"] for item in blocks.data("list")["items"])
    assert blocks.data("debt", "--tenant", "other")["blocks"] == 1
    assert "4 blocks with" in blocks.run("debt").stdout


def test_blocks_that_came_through_all_levels_are_no_debt(blocks: BlockCommands) -> None:
    path = blocks.write(1, job="made elsewhere")
    assert "level is 0, not 3" in blocks.fails("register", path, "--tenant", "acme", "--level", "3")
    blocks.objects.put(
        "top.parquet", blocks.objects.get(path).replace(b"compaction.dev.level", b"compaction.dev.laval")
    )
    blocks.data("register", "top.parquet", "--tenant", "acme", "--level", "3")
    assert blocks.data("debt")["items"] == []


def test_blocks_of_open_jobs_are_counted_as_such(blocks: BlockCommands) -> None:
    one, two, _ = blocks.add(1, 2, 3)
    with blocks.opened() as store:
        store.claim(job="job-1", token=1, sources=[one, two], output_level=1)
    assert blocks.data("debt")["items"][0]["inJobs"] == 2


def test_a_block_is_set_aside_retried_and_dropped(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    assert blocks.run("quarantine", "list").stdout == "no block is quarantined\n"
    with blocks.opened() as store:
        faults = {name: Fault("SourceCorrupt", "truncated on the way") for name in (one, two)}
        store.set_aside(faults, job="job-1")
    listed = blocks.data("quarantine", "list")["items"]
    assert [(item["block"], item["reason"], item["job"]) for item in listed] == [
        (one, "SourceCorrupt", "job-1"),
        (two, "SourceCorrupt", "job-1"),
    ]
    assert "truncated on the way" in blocks.run("quarantine", "list", "-o", "wide").stdout
    assert blocks.data("debt")["blocks"] == 0
    assert "SourceCorrupt: truncated on the way" in blocks.run("inspect", one).stdout
    assert blocks.run("quarantine", "retry", one).stdout == f"block {one} waits for compaction again\n"
    assert blocks.run("quarantine", "retry", one).stdout == f"block {one} was not quarantined\n"
    assert blocks.data("debt")["blocks"] == 1
    assert blocks.run("quarantine", "drop", two, input="n\n").exit_code != 0
    assert len(blocks.data("list")["items"]) == 2
    assert blocks.run("quarantine", "drop", two, "--yes").stdout == f"block {two} dropped\n"
    assert blocks.run("quarantine", "drop", two, "--yes").stdout == f"block {two} was dropped before\n"
    assert [item["id"] for item in blocks.data("list")["items"]] == [one]
    assert [item["reason"] for item in blocks.data("tombstones")["items"]] == ["dropped"]


def test_only_what_is_set_aside_is_dropped_by_hand(blocks: BlockCommands) -> None:
    (one,) = blocks.add(1)
    assert blocks.fails("quarantine", "drop", "--yes", one) == f"error: block {one} is not in quarantine"
    assert blocks.fails("quarantine", "drop", "--yes", block(9)) == f"error: block {block(9)} is unknown"
    assert blocks.fails("quarantine", "retry", block(9)) == f"error: block {block(9)} is unknown"
    assert len(blocks.data("list")["items"]) == 1
    with blocks.opened() as store:
        store.set_aside({one: Fault("SourceCorrupt", "x")})
    asked = blocks.run("quarantine", "drop", one, block(9), input="y\n")
    assert (asked.exit_code, asked.output) == (1, f"error: block {block(9)} is unknown\n"), "before anything is asked"
    assert len(blocks.data("list")["items"]) == 1


def test_what_a_job_replaced_was_not_dropped(blocks: BlockCommands) -> None:
    one, _ = blocks.add(1, 2)
    blocks.data("compact", "--all")
    line = f"error: block {one} is replaced, not in quarantine"
    assert blocks.fails("quarantine", "drop", "--yes", one) == line


def test_when_a_tombstone_is_due_says_whoever_knows_the_grace(blocks: BlockCommands, tmp_path: Path) -> None:
    """A store does not know its policy: without one no time is made up, and nothing is deleted before its grace."""
    blocks.add(1, 2)
    blocks.data("compact", "--all")
    assert {item["due"] for item in blocks.data("tombstones")["items"]} == {None}
    assert "2 blocks with " in blocks.run("tombstones").stdout
    assert "due when the policy says (give -f or --grace)" in blocks.run("tombstones").stdout
    refused = blocks.run("tombstones", "--sweep")
    assert refused.exit_code == 2
    assert "Give --grace, or a policy (-f)" in refused.stderr
    policy = policy_file(tmp_path / "policy.yaml", blocks, spec={"cleanup": {"delay": "20s"}})
    for item in blocks.data("tombstones", "-f", policy)["items"]:
        due, since = (datetime.fromisoformat(item[name]) for name in ("due", "since"))
        assert due - since == timedelta(seconds=20)


def test_tombstones_say_since_when_why_and_what_failed(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    assert blocks.run("tombstones").stdout.startswith("0 blocks with 0 wait for their deletion")
    with blocks.opened() as store:
        store.set_aside({name: Fault("SourceCorrupt", "x") for name in (one, two)})
        store.drop(one)
        store.drop(two)
        failed(store.index, {one: "access was denied"}, now=store.now())
    found = blocks.data("tombstones", "--grace", "1h")
    assert (found["blocks"], found["failing"]) == (2, 1)
    assert {item["block"]: (item["attempts"], item["error"]) for item in found["items"]} == {
        one: (1, "access was denied"),
        two: (0, None),
    }
    since, due = found["items"][0]["since"], found["items"][0]["due"]
    assert since < due
    assert "0 of those shown are due" in blocks.run("tombstones", "--grace", "1h").stdout
    assert "2 of those shown are due; 1 could not be deleted so far" in blocks.run("tombstones", "--grace", "0s").stdout
    assert len(json.loads(blocks.run("tombstones", "--limit", "1", "-o", "json").stdout)["items"]) == 1
    assert blocks.run("tombstones", "--grace", "soon").exit_code == 2


def test_a_sweep_deletes_what_is_due_and_nothing_else(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    paths = {item["id"]: item["path"] for item in blocks.data("list")["items"]}
    with blocks.opened() as store:
        store.set_aside({one: Fault("SourceCorrupt", "x")})
        store.drop(one)
    early = blocks.data("tombstones", "--sweep", "--grace", "1h")
    assert (early["swept"]["blocks"], early["blocks"]) == (0, 1)
    assert blocks.objects.head(paths[one]).path == paths[one]
    done = blocks.data("tombstones", "--sweep", "--grace", "0s")
    assert (done["swept"]["blocks"], done["swept"]["failed"], done["blocks"]) == (1, [], 0)
    assert [info.path for info in blocks.objects.list("acme")] == [paths[two]]
    assert "deleted: 0 blocks, 0" in blocks.run("tombstones", "--sweep", "--grace", "0s").stdout
    assert "is deleted" in blocks.fails("quarantine", "retry", one)


def test_retention_is_said_and_then_done(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2)  # made in 2023, their rows of 1970
    (kept,) = blocks.add(3, tenant="audit")
    periods = ("--keep", "24h", "--keep-tenant", "audit=0s")
    dry = blocks.data("retention", *periods)
    assert [item["block"] for item in dry["items"]] == ids
    assert (dry["ended"], dry["blocks"], dry["more"]) == (False, 2, False)
    assert "more than 1 blocks would end" in blocks.run("retention", *periods, "--limit", "1").stdout
    assert len(blocks.data("list")["items"]) == 3
    assert blocks.data("retention", "--keep", "999999h")["items"] == []
    result = blocks.run("retention", *periods, "--delete")
    assert "2 blocks with" in result.stdout
    assert [item["id"] for item in blocks.data("list")["items"]] == [kept]
    assert {item["reason"] for item in blocks.data("tombstones")["items"]} == {"expired"}
    assert "0 blocks with 0 would end; nothing was changed" in blocks.run("retention", *periods).stdout
    assert blocks.run("retention").exit_code == 2
    assert blocks.run("retention", "--keep-tenant", "audit").exit_code == 2


def test_orphans_are_listed_and_deleted_only_when_asked(blocks: BlockCommands) -> None:
    blocks.add(1)
    orphan = blocks.write(2)
    blocks.objects.put("notes/readme.txt", b"somebody else's")
    assert blocks.data("orphans")["items"] == []  # too young
    found = blocks.data("orphans", "--older-than", "0s")
    assert [item["path"] for item in found["items"]] == [orphan]
    assert "1 orphan with" in blocks.run("orphans", "--older-than", "0s").stdout
    assert blocks.objects.head(orphan).size == found["items"][0]["bytes"]
    assert blocks.data("orphans", "--older-than", "0s", "--delete") == {
        "deleted": 1,
        "bytes": found["items"][0]["bytes"],
        "failed": [],
    }
    left = {info.path for info in blocks.objects.list()}
    assert orphan not in left
    assert "notes/readme.txt" in left
    assert len(blocks.data("verify")["items"]) == 1
    assert "0 orphans with 0 deleted" in blocks.run("orphans", "--older-than", "0s", "--delete").stdout
    assert "was collected as an orphan" in blocks.fails("register", blocks.write(2), "--tenant", "acme")
