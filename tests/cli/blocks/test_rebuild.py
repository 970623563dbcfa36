"""`compactor blocks rebuild-index` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.blocks.index.claims import retire
from compaction.blocks.model import RowFingerprint
from support.stores.block_commands import BlockCommands, block, in_folder
from support.stores.block_histories import attempt
from support.stores.block_index import NOON
from support.stores.blocks import parquet, rows


def content(blocks: BlockCommands) -> RowFingerprint:
    """Of all live blocks, as they are read back now."""
    assert blocks.data("verify")["bad"] == 0
    listed = [RowFingerprint.parse(item["fingerprint"]) for item in blocks.data("list")["items"]]
    return sum(listed, RowFingerprint())


def _lose(commands: BlockCommands) -> None:
    for file in (Path(commands.environment["COMPACTION_STORE_URL"]) / "_compaction").glob("index.db*"):
        file.unlink()


def test_a_lost_index_is_made_anew(blocks: BlockCommands) -> None:
    blocks.add(1, 2, 3)
    before = blocks.data("list")["items"]
    _lose(blocks)
    assert "there is no index here" in blocks.fails("list")
    done = blocks.run("rebuild-index")
    assert done.exit_code == 0
    assert done.stdout.startswith("3 blocks with 150 rows and ")
    assert blocks.data("list")["items"] == before
    assert "it is not lost" in blocks.fails("rebuild-index")


def test_what_is_wrong_is_named(blocks: BlockCommands) -> None:
    blocks.add(1)
    path = blocks.write(2)
    blocks.objects.put(path, b"half")
    blocks.objects.put("notes.txt", b"mine")
    _lose(blocks)
    assert path in blocks.fails("rebuild-index")
    assert [item["id"] for item in blocks.data("list")["items"]] == [block(1)]


def test_a_lake_is_said_to_be_whose_it_is(blocks: BlockCommands) -> None:
    blocks.objects.put("2026/11/part-0.parquet", parquet(rows(5)))
    blocks.data("register", "--tenant", "acme", "--shard", "3", "--assign-ids", "2026/")
    before = blocks.data("list")["items"]
    _lose(blocks)
    done = blocks.run("rebuild-index", "--lake", "2026/=acme/3")
    assert done.exit_code == 0
    assert blocks.data("list")["items"] == before
    for wrong in ("2026", "2026/=acme", "2026/=/1", "2026/=acme/-1", "a=b/99999999999"):
        assert blocks.run("rebuild-index", "--lake", wrong).exit_code == 2


def test_a_mistyped_folder_is_no_store(tmp_path: Path) -> None:
    commands = in_folder(tmp_path / "nothing")
    assert "folder not found" in commands.fails("rebuild-index")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("swept", [True, False])
def test_what_the_real_rewrite_wrote_tells_enough(blocks: BlockCommands, swept: bool) -> None:
    """Three levels; and an attempt that died after its upload, whose sources nothing else names but as ancestors."""
    ids = blocks.add(*range(1, 9))
    before = content(blocks)
    with blocks.opened() as store:
        dead = attempt(store, ids[2:4], now=NOON, job="dead", parts=2)
        dead.upload()
        retire(store.index, "dead", now=NOON)
    assert len(blocks.data("compact", "--levels", "2:1h,2:1h,2:1h")["jobs"]) == 7
    if swept:
        # Deleted are eight blocks, then the four made of them, then the two.
        assert blocks.data("sweep", "--apply", "--grace", "0s")["tombstones"]["swept"]["blocks"] == 14
    _lose(blocks)
    result = blocks.data("rebuild-index")
    assert content(blocks) == before
    live = [item["level"] for item in blocks.data("list")["items"]]
    if swept:
        assert (live, result["unused"], result["replaced"]) == ([3], 2, 0)
    else:
        # All sources of the last one are there; what they were made of is known to be dead.
        assert (live, result["unused"], result["replaced"]) == ([2, 2], 3, 12)
    assert blocks.data("compact", "--all")
    assert content(blocks) == before
