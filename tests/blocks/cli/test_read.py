"""`compactor blocks register`, `list`, `inspect` and `verify` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from compaction.blocks.cli import verify as blocks_verify
from compaction.blocks.fingerprint import proof
from compaction.blocks.index.queued import Fault
from compaction.blocks.model import Block
from compaction.blocks.registration.foreign import assigned_id
from compaction.storage.objects.store import ObjectStorage
from support.blocks.block_commands import BlockCommands, block
from support.blocks.blocks import parquet, rows


def test_registered_blocks_are_listed_in_every_format(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2, 3)
    listed = blocks.data("list")
    assert [item["id"] for item in listed["items"]] == ids
    assert [item["rows"] for item in listed["items"]] == [50, 50, 50]
    assert yaml.safe_load(blocks.run("list", "-o", "yaml").stdout) == listed
    lines = blocks.run("list", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == listed["items"]
    table = blocks.run("list").stdout
    assert all(item in table for item in ids)
    assert table.splitlines()[-1].startswith("3 blocks, 150 rows")
    assert "acme/0/" in blocks.run("list", "-o", "wide").stdout
    assert blocks.run("list", "--tenant", "nobody").stdout == "0 blocks, 0 rows, 0\n"


def test_repeating_a_registration_changes_nothing(blocks: BlockCommands) -> None:
    path = blocks.write(1)
    first = blocks.data("register", path, "--tenant", "acme")
    again = blocks.data("register", path, "--tenant", "acme")
    assert [item["outcome"] for item in first["items"] + again["items"]] == ["registered", "known before"]
    assert len(blocks.data("list")["items"]) == 1
    assert "0 blocks registered, 1 known before" in blocks.run("register", path, "--tenant", "acme").stdout


def test_times_shards_and_levels_restrict(blocks: BlockCommands) -> None:
    one, two, three = blocks.add(1, 2, 3)  # rows in microseconds 100..149, 200..249, 300..349

    def listed(*args: str) -> list[str]:
        return [item["id"] for item in blocks.data("list", *args)["items"]]

    assert listed("--from", "150") == [two, three]
    assert listed("--to", "1970-01-01T00:00:00.000200Z") == [one, two]
    assert listed("--from", "1970-01-01T01:00:00.000249+01:00", "--to", "299") == [two]
    assert listed("--from", "1970-01-02") == listed("--level", "1") == listed("--shard", "1") == []
    assert blocks.run("list", "--from", "yesterday").exit_code == 2


def test_paths_urls_and_folders_name_the_same_file(blocks: BlockCommands, tmp_path: Path) -> None:
    path = blocks.write(1)
    file = Path(blocks.connection.url) / path
    for uri in (path, str(file), file.as_uri(), "acme/", "acme/0/", f"{blocks.connection.url}/"):
        assert [item["path"] for item in blocks.data("register", uri, "--tenant", "acme")["items"]] == [path]
    assert "lies outside of the store" in blocks.fails("register", tmp_path / "other.parquet", "--tenant", "acme")
    assert "lies outside of the store" in blocks.fails("register", "s3://elsewhere/x.parquet", "--tenant", "acme")
    assert "neither empty nor ." in blocks.fails("register", "../x.parquet", "--tenant", "acme")


def test_a_lake_of_other_writers_is_registered_under_ids_of_its_paths(blocks: BlockCommands) -> None:
    names = ["lake/2026/a.parquet", "lake/2026/b.parquet"]
    for number, name in enumerate(names):
        blocks.objects.put(name, parquet(rows(10, start=number)))
    blocks.objects.put("lake/_temporary/c.parquet", b"not finished")
    blocks.objects.put("lake/_SUCCESS", b"")
    refused = blocks.run("register", "lake/", "--tenant", "acme").stderr
    assert "has no id" in refused
    assert refused.endswith("--assign-ids would give 2 files an id made of the path\n")
    found = blocks.data("register", "lake/", "--tenant", "acme", "--assign-ids")
    assert [item["path"] for item in found["items"]] == names
    assert [item["id"] for item in found["items"]] == [assigned_id(blocks.objects.head(name)) for name in names]
    again = blocks.data("register", "lake/", "--tenant", "acme", "--assign-ids")
    assert {item["outcome"] for item in again["items"]} == {"known before"}


def test_a_folder_needs_no_slash_and_one_without_files_is_an_error(blocks: BlockCommands) -> None:
    paths = [blocks.write(1), blocks.write(2)]
    blocks.objects.put("text/notes.txt", b"mine")
    assert [item["path"] for item in blocks.data("register", "acme", "--tenant", "acme")["items"]] == paths
    skipped = "; skipped: 1 file not named *.parquet; name it to take it: text/notes.txt"
    for folder, passed in (("nofolder/", ""), ("text/", skipped)):
        line = blocks.fails("register", folder, paths[0], "--tenant", "acme")
        assert line == f"error: {folder}: no Parquet file lies below this folder{passed}"
    assert "there is no such object" in blocks.fails("register", "nofolder", "--tenant", "acme")


def test_a_block_in_the_wrong_place_is_told_its_place(blocks: BlockCommands) -> None:
    path = f"incoming/{block(1)}.parquet"
    blocks.objects.put(path, parquet(rows(5)))
    line = blocks.fails("register", path, "--tenant", "acme", "--shard", "3")
    assert line.endswith("is named by a ULID, but lies elsewhere than in acme/3/, where that is its id")


def test_circles_of_links_are_named_and_passed_over(blocks: BlockCommands) -> None:
    blocks.add(1)
    folder = Path(blocks.connection.url)
    (folder / "acme" / "circle").symlink_to("..")
    named = "skipped: acme/circle: a symbolic link leads back to a folder that holds it\n"
    registered = blocks.run("register", "acme/", "--tenant", "acme")
    assert (registered.exit_code, registered.stderr) == (0, named)
    searched = blocks.run("sweep", "--only", "orphans")
    assert (searched.exit_code, searched.stderr) == (0, named)
    for file in (folder / "_compaction").glob("index.db*"):
        file.unlink()
    rebuilt = blocks.run("rebuild-index")
    assert (rebuilt.exit_code, rebuilt.stderr) == (0, named)
    assert [item["id"] for item in blocks.data("list")["items"]] == [block(1)]


def test_files_that_are_no_blocks_are_all_named_and_nothing_is_registered(blocks: BlockCommands) -> None:
    good = blocks.write(1)
    blocks.objects.put("acme/0/text.parquet", b"no Parquet at all")
    args = ("register", good, "acme/0/text.parquet", "acme/0/missing.parquet", "--tenant", "acme")
    result = blocks.run(*args)
    assert result.exit_code == 1
    *lines, hint = result.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["acme/0/text.parquet", "acme/0/missing.parquet"]
    assert hint == "nothing of these 3 files was registered; --skip-bad would register the other 1"
    assert blocks.data("list")["items"] == []
    skipped = blocks.run(*args, "--skip-bad")
    assert skipped.exit_code == 1
    assert "--skip-bad would" not in skipped.stderr
    assert len(blocks.data("list")["items"]) == 1


def test_of_many_errors_some_are_shown_and_all_are_in_the_data(blocks: BlockCommands) -> None:
    for number in range(30):
        blocks.write(number + 1, tenant="other")
    result = blocks.run("register", "other/", "--tenant", "acme", "-o", "json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["failures"]) == 30
    lines = result.stderr.splitlines()
    assert (len(lines), lines[-1]) == (21, "error: and 10 more (all of them with -o json)")


def test_a_block_of_another_tenant_is_refused(blocks: BlockCommands) -> None:
    path = blocks.write(1)
    assert "tenant is 'acme', not 'other'" in blocks.fails("register", path, "--tenant", "other")
    assert "allowed are 1 to 200" in blocks.fails("register", path, "--tenant", "x" * 500)


def test_inspect_shows_index_and_object(blocks: BlockCommands) -> None:
    (one,) = blocks.add(1)
    found = blocks.data("inspect", one)
    assert (found["state"], found["rows"], found["minTime"]) == ("live", 50, "1970-01-01T00:00:00.000100Z")
    assert [column["name"] for column in found["object"]["columns"]] == ["service", "time", "value"]
    assert found["object"]["metadata"]["compaction.dev.tenant"] == "acme"
    assert "service string, time timestamp[us, tz=UTC]" in blocks.run("inspect", one).stdout
    assert f"block {block(9)} is unknown" in blocks.fails("inspect", block(9))
    assert "is unknown" in blocks.fails("inspect", "no id at all")


def test_inspect_names_what_is_wrong_with_the_object(blocks: BlockCommands) -> None:
    (one,) = blocks.add(1)
    path = blocks.data("inspect", one)["path"]
    blocks.objects.delete([path])
    assert blocks.fails("inspect", one) == f"error: {path}: there is no such object"
    assert json.loads(blocks.run("inspect", one, "-o", "json").stdout)["object"] is None


def test_verify_reads_everything_and_finds_it_equal(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    assert blocks.data("verify") | {"items": []} == {"items": [], "equal": 2, "bad": 0}
    assert [item["id"] for item in blocks.data("verify", two)["items"]] == [two]
    assert [item["id"] for item in blocks.data("verify", "--tenant", "acme")["items"]] == [one, two]
    assert "2 blocks read, 2 equal to the index, 0 not" in blocks.run("verify").stdout


def test_verify_names_each_difference_and_goes_on(blocks: BlockCommands) -> None:
    other, short, gone, good = blocks.add(1, 2, 3, 4)
    paths = {item["id"]: item["path"] for item in blocks.data("list")["items"]}
    blocks.objects.put(paths[other], parquet(rows(49, start=7)))
    blocks.objects.put(paths[short], blocks.objects.get(paths[short])[:-40])
    blocks.objects.delete([paths[gone]])
    result = blocks.run("verify", "-o", "json")
    assert result.exit_code == 1
    verified = {item["id"]: item["verified"] for item in json.loads(result.stdout)["items"]}
    assert verified == {other: "DIFFERENT", short: "UNREADABLE", gone: "UNREADABLE", good: "equal"}
    lines = result.stderr.splitlines()
    assert f"error: block {other}: " in lines[0]
    assert "rows 49, in the index 50" in lines[0]
    assert "content " in lines[0]
    assert "corrupt block" in lines[1]
    assert lines[2].endswith("there is no such object")


def test_verify_names_a_block_on_which_the_code_fails_and_goes_on(
    blocks: BlockCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks.add(1, 2)
    plain = proof.read_back
    monkeypatch.setattr(proof, "read_back", lambda path, file: [][3] if block(1) in path else plain(path, file))
    line = blocks.fails("verify")
    assert line.startswith(f"error: block {block(1)}: an unexpected IndexError at blocks/cli/verify.py:")
    assert "2 blocks read, 1 equal to the index, 1 not" in blocks.run("verify").stdout


def test_a_block_that_ends_while_others_are_verified_is_no_difference(
    blocks: BlockCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = blocks.add(1, 2)
    path = blocks.data("inspect", two)["path"]
    read = blocks_verify._differences

    def end_it_first(objects: ObjectStorage, block: Block) -> list[str]:
        if block.id == two:
            with blocks.opened() as store:
                store.set_aside({two: Fault("SourceCorrupt", "x")})
                store.drop(two)
            objects.delete([path])
        return read(objects, block)

    monkeypatch.setattr(blocks_verify, "_differences", end_it_first)
    verified = {item["id"]: item["verified"] for item in blocks.data("verify")["items"]}
    assert verified == {one: "equal", two: "replaced meanwhile"}


def test_verify_of_what_is_not_live_says_so(blocks: BlockCommands) -> None:
    blocks.add(1)
    assert blocks.fails("verify", block(9)) == f"error: block {block(9)} is unknown"
    assert blocks.run("verify", block(1), "--tenant", "acme").exit_code == 2


@pytest.mark.parametrize("command", [["list"], ["verify"], ["inspect"], ["sweep"], ["quarantine"]])
def test_a_mistyped_folder_does_not_become_a_store(blocks: BlockCommands, command: list[str], tmp_path: Path) -> None:
    line = blocks.fails(*command, "--store", tmp_path / "typo")
    assert "there is no index here" in line
    assert not (tmp_path / "typo").exists()


# `compactor blocks inspect` of what waits, and `quarantine`, as a user meets them.


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
