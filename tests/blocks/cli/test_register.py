"""`compactor blocks register` on folders as other programs leave them: what it takes, what it refuses, what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.format import footer as footer_module
from compaction.blocks.format.footer import BlockFooter
from compaction.blocks.index.claims import claim, retire
from compaction.blocks.model import RowFingerprint
from compaction.blocks.registration import describe
from compaction.blocks.registration.describe import Described
from compaction.storage.objects.store import ObjectStorage
from support.blocks.block_commands import BlockCommands, block, in_folder
from support.blocks.block_histories import attempt
from support.blocks.block_stores import NOON
from support.blocks.blocks import parquet, rows


def test_files_of_a_table_are_named_by_folder_and_the_others_registered(blocks: BlockCommands) -> None:
    for path in ("lake/a.parquet", "wh/t/data/x.parquet", "wh/t/data/y.parquet"):
        blocks.objects.put(path, parquet(rows(5)))
    blocks.objects.put("wh/t/metadata/v2.metadata.json", b"{}")
    args = ("register", "--tenant", "acme", "--assign-ids", f"{blocks.connection.url}/")
    line = blocks.fails(*args)
    assert line.startswith("error: wh/t/data/x.parquet and 1 other file: belongs to an Apache Iceberg table (/")
    assert "/wh/t/metadata/v2.metadata.json): Iceberg itself compacts it: rewrite_data_files, then" in line
    assert blocks.data("list")["items"] == []
    blocks.fails(*args, "--skip-bad")
    assert [item["path"] for item in blocks.data("list")["items"]] == ["lake/a.parquet"]


def test_no_store_begins_in_the_folder_of_a_table_and_nothing_is_written_there(tmp_path: Path) -> None:
    """Nor inside another store: a merge there would delete what is live in the outer one."""
    outer = in_folder(tmp_path / "outer")
    outer.add(1)
    table = tmp_path / "table"
    (table / "_delta_log").mkdir(parents=True)
    (table / "region=eu").mkdir()
    for folder, what in ((table, "a Delta Lake table"), (table / "region=eu", "a Delta Lake table"),
                         (tmp_path / "outer/acme", "another block store")):  # fmt: skip
        before = sorted(folder.rglob("*"))
        for command in (("register", "x.parquet", "--tenant", "t"), ("rebuild-index",)):
            line = in_folder(folder).fails(*command)
            assert line.startswith(f"error: {folder}: no store can begin in this folder: it belongs to {what}")
        assert sorted(folder.rglob("*")) == before


def test_a_column_that_only_the_path_holds_is_lost_on_demand_only(blocks: BlockCommands) -> None:
    """Unless the file has it, or the folder is that of a tenant."""
    table = rows(5)
    blocks.objects.put("lake/region=eu/a.parquet", parquet(table))
    blocks.objects.put("lake/Service=s0/b.parquet", parquet(table))
    args = ("register", "--tenant", "t=1", "--assign-ids")
    line = blocks.fails(*args, "lake/")
    assert line.startswith("error: lake/region=eu/a.parquet: the column 'region' ('eu') is in its path only")
    assert line.endswith("or give the column up with --drop-path-column region (over HTTP: dropPathColumns)")
    paths = ["lake/Service=s0/b.parquet", "lake/region=eu/a.parquet"]
    found = blocks.data(*args, "lake/", "--drop-path-column", "region")["items"]
    assert [item["path"] for item in found] == paths
    blocks.add(1, tenant="t=1")
    lake = ("rebuild-index", "--lake", "lake=t=1/0")
    for file in Path(blocks.connection.url).glob("_compaction/index.db*"):
        file.unlink()
    assert "'region' ('eu') is in its path only" in blocks.fails(*lake)
    for file in Path(blocks.connection.url).glob("_compaction/index.db*"):
        file.unlink()
    assert blocks.data(*lake, "--drop-path-column", "region")["blocks"] == 3


def test_a_file_that_fails_for_no_known_reason_is_named_and_the_others_registered(
    blocks: BlockCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = blocks.write(1), blocks.write(2)
    plain = describe.describe_footer

    def fails(objects: ObjectStorage, footer: BlockFooter, *args: Any, **known: Any) -> Described:
        return footer.nothing if footer.info.path == bad else plain(objects, footer, *args, **known)  # type: ignore

    monkeypatch.setattr(describe, "describe_footer", fails)
    line = blocks.fails("register", good, bad, "--tenant", "acme", "--skip-bad")
    assert line.startswith(f"error: {bad}: an unexpected AttributeError at blocks/cli/register.py:")
    assert [item["path"] for item in blocks.data("list")["items"]] == [good]
    assert "Traceback" not in blocks.run("register", bad, "--tenant", "acme").output


def test_what_a_folder_holds_besides_is_said_and_our_own_outputs_are_no_news(blocks: BlockCommands) -> None:
    for name in ("lake/a.parquet", "lake/b.parquet", "lake/C.PARQUET", "lake/d", "lake/_tmp/e.parquet"):
        blocks.objects.put(name, parquet(rows(5)))
    root = f"{blocks.connection.url}/"
    args = ("register", "--tenant", "acme", "--assign-ids", root)
    first = blocks.run(*args)
    assert first.stderr.splitlines()[:2] == [
        "skipped: 2 files not named *.parquet; name it to take it: lake/C.PARQUET, lake/d",
        "skipped: 1 file under names that begin with . or _: lake/_tmp/e.parquet",
    ]
    assert "note: the store owns these files now" in first.stderr
    assert "2 blocks registered" in first.stdout
    blocks.run("compact", "--all", "--grace", "0s")
    again = blocks.run(*args)
    assert (again.exit_code, again.stdout) == (0, "0 blocks registered\n")
    assert "skipped: 1 file written by compactions of this store: acme/0/" in again.stderr
    assert "note:" not in again.stderr
    named = blocks.data("register", "--tenant", "acme", "--assign-ids", "lake/C.PARQUET", "lake/d")["items"]
    assert [item["outcome"] for item in named] == ["registered"] * 2


def test_what_compactions_of_another_store_wrote_is_not_passed_over(blocks: BlockCommands, tmp_path: Path) -> None:
    """Merged files that were copied: their rows would be in no index. The others are registered."""
    for number in (1, 2):
        blocks.add(number)
    blocks.run("compact", "--all", "--grace", "0s")
    (output,) = (item["path"] for item in blocks.data("list")["items"])
    copied = in_folder(tmp_path / "copy")
    copied.objects.put(output, blocks.objects.get(output))
    plain = copied.write(3)
    args = ("register", "--tenant", "acme", f"{copied.connection.url}/")
    line = copied.fails(*args)
    assert line.startswith(f"error: {output}: compaction '")
    assert "compactor blocks rebuild-index" in line
    assert [item["path"] for item in copied.data("list")["items"]] == [plain]
    empty = ("--index", f"sqlite:///{tmp_path}/new.db")
    copied.run("rebuild-index", *empty)
    assert {item["path"] for item in copied.data("list", *empty)["items"]} == {output, plain}
    again = copied.run(*args, *empty)
    assert (again.exit_code, "skipped: 1 file written by compactions of this store" in again.stderr) == (0, True)


def test_what_a_compaction_of_this_store_left_is_no_error(blocks: BlockCommands) -> None:
    """A worker that died, or that has not committed yet: its sources are live."""
    blocks.add(1)
    with blocks.opened() as store:
        claim(store.index, job="job-7", token=1, sources=[block(1)], now=store.now())
    blocks.write(2, job="job-7")
    result = blocks.run("register", "--tenant", "acme", f"{blocks.connection.url}/")
    assert (result.exit_code, "skipped: 1 file written by" in result.stderr) == (0, True)


def test_known_files_are_looked_up_and_an_overwritten_one_keeps_no_other_out(
    blocks: BlockCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        blocks.objects.put(f"lake/{number}.parquet", parquet(rows(5, start=10 * number)))
    args = ("register", "--tenant", "acme", "--assign-ids", "lake/")
    blocks.data(*args)
    plain, read = footer_module.read_footer, list[str]()

    def counted(objects: ObjectStorage, path: str) -> BlockFooter:
        read.append(path)
        return plain(objects, path)

    monkeypatch.setattr(footer_module, "read_footer", counted)
    assert {item["outcome"] for item in blocks.data(*args)["items"]} == {"known before"}
    assert read == []
    blocks.objects.put("lake/1.parquet", parquet(rows(9)))
    blocks.objects.put("lake/3.parquet", parquet(rows(5)))
    result = blocks.run(*args, "-o", "json")
    found = json.loads(result.stdout)
    assert [(item["path"], item["outcome"]) for item in found["items"]] == [
        ("lake/0.parquet", "known before"), ("lake/2.parquet", "known before"), ("lake/3.parquet", "registered"),
    ]  # fmt: skip
    assert [item.partition(" was overwritten since block ")[0] for item in found["failures"]] == ["lake/1.parquet: it"]
    assert (result.exit_code, read) == (1, ["lake/3.parquet"])
    assert blocks.run(*args, "--verify", "--skip-bad").exit_code == 1
    assert sorted(read[1:]) == [f"lake/{number}.parquet" for number in range(4)]


def test_what_a_merge_drops_of_a_footer_is_said_at_registration(blocks: BlockCommands) -> None:
    """Keys on which all files agree stay, and `geo` and `pandas` are joined: nothing is said of those."""
    for name, said in (("a", {"host": "a", "unit": "m"}), ("b", {"host": "b", "unit": "m"})):
        table = rows(5).replace_schema_metadata({**said, "pandas": f'{{"creator": {{"version": "{name}"}}}}'})
        blocks.objects.put(f"{name}.parquet", parquet(table))
    result = blocks.run("register", "--tenant", "t", "--assign-ids", "a.parquet", "b.parquet")
    assert "note: these files differ in the footer keys host: a merge of files that differ drops them" in result.stderr
    assert "unit" not in result.stderr
    assert "pandas" not in result.stderr


# `compactor blocks rebuild-index` as a user meets it.


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
