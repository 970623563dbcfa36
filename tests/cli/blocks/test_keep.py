"""`compactor blocks inspect` of what waits, and `quarantine`, as a user meets them."""

from __future__ import annotations

import pytest

from compaction.blocks.index.queued import Fault
from support.stores.block_commands import BlockCommands, block


def test_debt_is_told_by_level_and_tenant(blocks: BlockCommands) -> None:
    blocks.add(1, 2, 3)
    assert blocks.run("inspect", "--tenant", "nobody").stdout == "nothing waits\n"
    blocks.add(4, tenant="other")
    found = blocks.data("inspect")
    assert [(item["level"], item["tenant"], item["blocks"]) for item in found["items"]] == [
        (0, "acme", 3),
        (0, "other", 1),
    ]
    assert found["blocks"] == 4
    assert found["bytes"] == sum(item["bytes"] for item in blocks.data("list")["items"])
    assert blocks.data("inspect", "--tenant", "other")["blocks"] == 1
    assert "4 blocks with" in blocks.run("inspect").stdout


def test_a_tenant_is_asked_for_without_a_block(blocks: BlockCommands) -> None:
    (block_id,) = blocks.add(1)
    asked = blocks.run("inspect", block_id, "--tenant", "acme")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "give an ID or --tenant, not both" in asked.stderr


def test_blocks_that_came_through_all_levels_are_no_debt(blocks: BlockCommands) -> None:
    path = blocks.write(1, job="made elsewhere")
    assert "level is 0, not 3" in blocks.fails("register", path, "--tenant", "acme", "--level", "3")
    blocks.objects.put(
        "top.parquet", blocks.objects.get(path).replace(b"compaction.dev.level", b"compaction.dev.laval")
    )
    blocks.data("register", "top.parquet", "--tenant", "acme", "--level", "3")
    assert blocks.data("inspect")["items"] == []


def test_blocks_of_open_jobs_are_counted_as_such(blocks: BlockCommands) -> None:
    one, two, _ = blocks.add(1, 2, 3)
    with blocks.opened() as store:
        store.claim(job="job-1", token=1, sources=[one, two], output_level=1)
    assert blocks.data("inspect")["items"][0]["inJobs"] == 2


def test_a_block_is_set_aside_retried_and_dropped(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    assert blocks.run("quarantine").stdout == "no block is quarantined\n"
    with blocks.opened() as store:
        faults = {name: Fault("SourceCorrupt", "truncated on the way") for name in (one, two)}
        store.set_aside(faults, job="job-1")
    listed = blocks.data("quarantine")["items"]
    assert [(item["block"], item["reason"], item["job"]) for item in listed] == [
        (one, "SourceCorrupt", "job-1"),
        (two, "SourceCorrupt", "job-1"),
    ]
    assert "truncated on the way" in blocks.run("quarantine", "-o", "wide").stdout
    assert blocks.data("inspect")["blocks"] == 0
    assert "SourceCorrupt: truncated on the way" in blocks.run("inspect", one).stdout
    assert blocks.run("quarantine", one, "--release").stdout == f"block {one} waits for compaction again\n"
    assert blocks.run("quarantine", one, "--release").stdout == f"block {one} was not quarantined\n"
    assert blocks.data("inspect")["blocks"] == 1
    assert blocks.run("quarantine", two, "--drop", input="n\n").exit_code != 0
    assert len(blocks.data("list")["items"]) == 2
    assert blocks.run("quarantine", two, "--drop", "--yes").stdout == f"block {two} dropped\n"
    assert blocks.run("quarantine", two, "--drop", "--yes").stdout == f"block {two} was dropped before\n"
    assert [item["id"] for item in blocks.data("list")["items"]] == [one]
    assert [item["reason"] for item in blocks.data("sweep")["tombstones"]["items"]] == ["dropped"]


def test_quarantine_lists_those_that_are_named(blocks: BlockCommands) -> None:
    one, two, three = blocks.add(1, 2, 3)
    with blocks.opened() as store:
        store.set_aside({one: Fault("SourceCorrupt", "x"), two: Fault("SourceMissing", "y")})
    assert [item["block"] for item in blocks.data("quarantine", two)["items"]] == [two]
    assert [item["block"] for item in blocks.data("quarantine", two, one)["items"]] == [one, two]
    assert one not in blocks.run("quarantine", two).stdout
    assert blocks.fails("quarantine", one, three) == f"error: block {three} is not in quarantine"
    assert blocks.fails("quarantine", block(9)) == f"error: block {block(9)} is unknown"
    with blocks.opened() as store:
        store.drop(one)
    assert blocks.fails("quarantine", one) == f"error: block {one} is dropped, not in quarantine"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--release"], "--release of which blocks?"),
        (["--drop", "--yes"], "--drop of which blocks?"),
        ([block(1), "--release", "--drop"], "give --release or --drop, not both"),
        (["--release", "--drop"], "give --release or --drop, not both"),
        ([block(1), "--yes"], "--yes goes with --drop"),
        ([block(1), "--release", "--yes"], "--yes goes with --drop"),
        ([block(1), "--release", "-o", "json"], "-o is about the list: leave it out with --release"),
        ([block(1), "--drop", "--yes", "-o", "json"], "-o is about the list: leave it out with --drop"),
    ],
)
def test_quarantine_takes_no_flag_without_what_it_is_about(blocks: BlockCommands, wrong: list[str], said: str) -> None:
    blocks.add(1)
    with blocks.opened() as store:
        store.set_aside({block(1): Fault("SourceCorrupt", "x")})
    refused = blocks.run("quarantine", *wrong)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert [item["block"] for item in blocks.data("quarantine")["items"]] == [block(1)]


def test_only_what_is_set_aside_is_dropped_by_hand(blocks: BlockCommands) -> None:
    (one,) = blocks.add(1)
    assert blocks.fails("quarantine", "--drop", "--yes", one) == f"error: block {one} is not in quarantine"
    assert blocks.fails("quarantine", "--drop", "--yes", block(9)) == f"error: block {block(9)} is unknown"
    assert blocks.fails("quarantine", "--release", block(9)) == f"error: block {block(9)} is unknown"
    assert len(blocks.data("list")["items"]) == 1
    with blocks.opened() as store:
        store.set_aside({one: Fault("SourceCorrupt", "x")})
    asked = blocks.run("quarantine", "--drop", one, block(9), input="y\n")
    assert (asked.exit_code, asked.output) == (1, f"error: block {block(9)} is unknown\n"), "before anything is asked"
    assert len(blocks.data("list")["items"]) == 1


def test_what_a_job_replaced_was_not_dropped(blocks: BlockCommands) -> None:
    one, _ = blocks.add(1, 2)
    blocks.data("compact", "--all")
    line = f"error: block {one} is replaced, not in quarantine"
    assert blocks.fails("quarantine", "--drop", "--yes", one) == line
