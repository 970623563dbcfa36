"""`compactor blocks inspect` says why this very block is not merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compaction.blocks.index.queued import Fault
from support.stores.block_commands import BlockCommands, block, policy_file


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
