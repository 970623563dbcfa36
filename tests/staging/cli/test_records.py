"""`compactor staging put`, `rm`, `list` and `diff` as a user meets them."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64encode
from pathlib import Path

import yaml

from compaction.staging.cli.values import raw_value
from support.staging.staging_repos import StagingCommands


def put_all(staging: StagingCommands, *keys: str, branch: str = "main") -> None:
    staging.exec([{"op": "set_many", "branch": branch, "values": {key: f"value of {key}" for key in keys}}])


def test_a_value_is_read_as_it_was_written(staging: StagingCommands, tmp_path: Path) -> None:
    content = bytes(range(256))
    (tmp_path / "file").write_bytes(content)
    put = staging.data("put", "main", "a/1", tmp_path / "file")
    assert put == {"branch": "main", "key": "a/1", "identity": hashlib.sha256(content).hexdigest()}
    assert staging.run("list", "main", "a/1", "--raw").stdout_bytes == content
    staging.does("put", "main", "a/2", "-", input="from a pipe")
    staging.does("put", "main", "a/3", "--text", "")
    assert staging.data("list", "main", "a/2")["value"] == "from a pipe"
    assert staging.data("list", "main", "a/3")["value"] == ""
    assert "key:       a/2" in staging.does("list", "main", "a/2")


def test_an_entry_has_the_identity_of_its_object(staging: StagingCommands, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    options = ("--address", "s3://lake/x", "--content-type", "text/plain", "--metadata", "a=b=c")
    one = staging.data("put", "main", "x", tmp_path / "file", *options)
    etag = hashlib.md5(b"content").hexdigest()
    two = staging.data("put", "main", "y", "--size", "7", "--etag", etag, *options[:4], "--metadata", "a=b=c")
    assert one["identity"] == two["identity"], "neither address nor time is part of it"
    entry = staging.data("list", "main", "x")["entry"]
    assert entry.pop("lastModified").endswith("Z")
    assert entry == {
        "address": "s3://lake/x",
        "addressType": "full",
        "size": 7,
        "eTag": etag,
        "metadata": {"a": "b=c"},
        "contentType": "text/plain",
    }
    assert "address:" in staging.does("list", "main", "x")


def test_conditions_hold_or_nothing_is_written(staging: StagingCommands) -> None:
    first = staging.data("put", "main", "a", "--text", "1", "--if-absent")["identity"]
    assert staging.fails("put", "main", "a", "--text", "2", "--if-absent").endswith("nothing was written")
    second = staging.data("put", "main", "a", "--text", "2", "--if-identity", first)["identity"]
    assert "not the object that was expected" in staging.fails(
        "put", "main", "a", "--text", "3", "--if-identity", first
    )
    assert staging.data("list", "main", "a") == {"key": "a", "identity": second, "value": "2"}


def test_put_says_what_does_not_fit_together(staging: StagingCommands) -> None:
    for args in (
        [],
        ["--size", "3"],
        ["--text", "x", "--metadata", "a=b"],
        ["--text", "x", "--if-absent", "--if-identity", "00"],
        ["--address", "s3://x/y"],
        ["--address", "", "--size", "1", "--etag", "e"],
        ["--address", "s3://x/y", "--size", "1", "--etag", "e", "--identity", "00"],
        ["/nowhere/file"],
    ):
        assert staging.run("put", "main", "k", *args).exit_code == 2, args
    assert "hexadecimal" in staging.fails("put", "main", "k", "--text", "x", "--identity", "xyz")
    assert staging.fails("put", "main", "", "--text", "x").startswith("error: ")
    assert staging.fails("put", "none", "k", "--text", "x") == 'error: branch "none" not found'
    assert staging.keys() == []


def test_listings_have_prefixes_delimiters_and_pages(staging: StagingCommands) -> None:
    put_all(staging, "a/1", "a/2", "b", "c/x/1", "c/y")
    assert staging.keys() == ["a/1", "a/2", "b", "c/x/1", "c/y"]
    assert staging.keys("main", "--delimiter", "/") == ["a/", "b", "c/"]
    assert staging.keys("main", "--prefix", "c/", "--delimiter", "/") == ["c/x/", "c/y"]
    page = staging.data("list", "main", "--amount", "2")
    assert page["more"]
    assert [item["key"] for item in page["items"]] == ["a/1", "a/2"]
    assert staging.keys("main", "--after", "a/2", "--amount", "2") == ["b", "c/x/1"]
    assert staging.does("list", "main", "--amount", "2").endswith("2 entries, more with --after 'a/2' or --all\n")
    assert staging.does("list", "main").endswith("5 entries\n")
    lines = staging.does("list", "main", "--all", "-o", "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == staging.data("list", "main")["items"]
    assert yaml.safe_load(staging.does("list", "main", "-o", "yaml")) == staging.data("list", "main")


def test_records_are_shown_in_full(staging: StagingCommands) -> None:
    put_all(staging, "a", "b", "c")
    items = staging.data("list", "main")["items"]
    assert staging.data("list", "main", "a") == items[0]
    assert staging.data("list", "main", "c", "a") == {"items": [items[2], items[0]]}
    lines = staging.does("list", "main", "c", "a", "-o", "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == [items[2], items[0]]
    shown = staging.does("list", "main", "a", "b").split("\n\n")
    assert [text.splitlines()[-1].split(maxsplit=1)[1] for text in shown] == ["value of a", "value of b"]
    result = staging.run("list", "main", "a", "nope", "b")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", 'error: key "nope of main" not found\n')


def test_options_of_a_listing_and_of_single_records_are_not_mixed(staging: StagingCommands) -> None:
    put_all(staging, "a", "b")
    for args, words in (
        (["--raw"], "give exactly one KEY"),
        (["a", "b", "--raw"], "give exactly one KEY"),
        (["--stage-only"], "give a KEY"),
        (["a", "--prefix", ""], "--prefix is of a listing"),
        (["a", "--delimiter", "/"], "--delimiter is of a listing"),
        (["a", "--after", "b"], "--after is of a listing"),
        (["a", "--amount", "1000"], "--amount is of a listing"),
        (["a", "b", "--all"], "--all is of a listing"),
    ):
        assert words in staging.fails("list", "main", *args, code=2), args
    assert [item["key"] for item in staging.data("list", "main", "a", "b", "--stage-only")["items"]] == ["a", "b"]


def test_more_than_a_page_is_listed_and_deleted(staging: StagingCommands) -> None:
    put_all(staging, *(f"p/{number:04}" for number in range(2500)), "q")
    assert len(staging.data("list", "main", "--all")["items"]) == 2501
    assert len(staging.data("list", "main", "--amount", "1700")["items"]) == 1700
    assert staging.data("rm", "main", "--prefix", "p/") == {"branch": "main", "deleted": 2500}
    assert staging.keys() == ["q"]


def test_keys_are_any_bytes(staging: StagingCommands) -> None:
    key = os.fsdecode(b"k\xff\xfe")
    staging.does("put", "main", key, "--text", "x")
    assert staging.data("list", "main")["items"][0]["keyBase64"] == "a//+"
    assert "k\\xff\\xfe" in staging.does("list", "main")
    assert staging.data("list", "main", key)["keyBase64"] == "a//+"
    staging.does("rm", "main", key)
    assert staging.keys() == []


def test_deleted_keys_are_gone_and_unknown_ones_count_as_deleted(staging: StagingCommands) -> None:
    put_all(staging, "a", "b", "c")
    assert staging.does("rm", "main", "a", "nope") == "2 keys deleted on branch main\n"
    assert staging.keys() == ["b", "c"]
    assert staging.fails("list", "main", "a") == 'error: key "a of main" not found'
    assert staging.run("rm", "main").exit_code == staging.run("rm", "main", "b", "--prefix", "c").exit_code == 2
    assert staging.fails("rm", "none", "--prefix", "c") == 'error: branch "none" not found'


def test_differences_say_what_is_uncommitted_and_how_references_differ(staging: StagingCommands) -> None:
    put_all(staging, "a", "b")
    staging.does("commit", "main", "-m", "first")
    staging.does("branch", "etl", "main")
    staging.does("rm", "etl", "a")
    staging.does("put", "etl", "b", "--text", "other")
    staging.does("put", "etl", "c", "--text", "new")
    found = staging.data("diff", "etl")
    assert [(item["kind"], item["key"]) for item in found["items"]] == [
        ("removed", "a"),
        ("changed", "b"),
        ("added", "c"),
    ]
    assert found["items"][1]["left"]["value"] == "value of b"
    assert found["items"][1]["right"]["value"] == "other"
    assert staging.data("diff", "main", "etl") == found
    assert staging.data("diff", "main", "etl@")["items"] == staging.data("diff", "main")["items"] == []
    assert staging.does("diff", "etl").splitlines()[-1] == "3 differences"
    assert staging.fails("diff", "none") == 'error: branch "none" not found'
    assert staging.run("list", "etl", "b", "--stage-only").exit_code == 0
    assert staging.run("list", "main", "b", "--stage-only").exit_code == 1


# Repositories, branches, tags, commits, merges and resets on the command line.


def test_repositories_are_created_and_listed(staging: StagingCommands, tmp_path: Path) -> None:
    assert staging.does("repo", "other", tmp_path / "more", "--default-branch", "trunk") == (
        "repository other created with branch trunk\n"
    )
    items = staging.data("repo")["items"]
    assert [(item["name"], item["defaultBranch"]) for item in items] == [("example", "main"), ("other", "trunk")]
    assert items[1]["namespace"] == (tmp_path / "more").as_uri()
    assert staging.does("repo").endswith("2 repositories\n")
    assert "already exists" in staging.fails("repo", "other", tmp_path / "more")
    assert "is not the name of a repository" in staging.fails("repo", "X", tmp_path / "more")
    assert "no such kind of object store" in staging.fails("repo", "third", "ftp://x/y")


def test_branches_and_tags_come_and_go(staging: StagingCommands) -> None:
    staging.does("put", "main", "a", "--text", "1")
    commit = staging.data("commit", "main", "-m", "first", "--metadata", "source=test", "--committer", "me")
    assert (commit["message"], commit["committer"], commit["metadata"]) == ("first", "me", {"source": "test"})
    staging.does("branch", "etl", "main")
    assert [item["name"] for item in staging.data("branch")["items"]] == ["etl", "main"]
    assert staging.data("tag", "v1", "etl") == {"name": "v1", "commit": commit["id"]}
    assert staging.data("tag")["items"] == [{"name": "v1", "commit": commit["id"]}]
    assert staging.keys("v1") == staging.keys(commit["id"][:10]) == ["a"]
    staging.does("branch", "-d", "etl")
    staging.does("tag", "-d", "v1")
    assert staging.does("tag") == "0 tags\n"
    assert staging.fails("tag", "-d", "v1") == 'error: tag "v1" not found'
    assert "default branch" in staging.fails("branch", "-d", "main")
    assert 'branch "main" already exists' in staging.fails("branch", "main", "main")
    assert staging.fails("branch", "x", "nope") == 'error: reference "nope" not found'


def test_names_that_do_not_fit_together_are_wrong_usage(staging: StagingCommands) -> None:
    for args, words in (
        (["repo", "other"], "Give NAME and NAMESPACE_URL to create"),
        (["repo", "--default-branch", "trunk"], "--default-branch is of a new one: give NAME and NAMESPACE_URL"),
        (["repo", "--committer", "me"], "--committer is of a new one: give NAME and NAMESPACE_URL"),
        (["branch", "etl"], "Give NAME and SOURCE to create, --delete NAME to delete"),
        (["branch", "etl", "main", "-d", "etl"], "--delete has the name itself"),
        (["branch", "etl", "--delete", "etl"], "--delete has the name itself"),
        (["tag", "v1"], "Give NAME and REF to create, --delete NAME to delete"),
        (["tag", "v1", "main", "--delete", "v1"], "--delete has the name itself"),
        (["branch", "etl", "main", "more"], "unexpected extra argument"),
    ):
        assert words in staging.fails(*args, code=2), args
    assert [item["name"] for item in staging.data("branch")["items"]] == ["main"]
    assert staging.data("tag")["items"] == []
    staging.does("branch", "etl", "main")
    assert staging.data("branch", "--delete", "etl") == {"deleted": "etl"}
    assert staging.does("branch", "etl", "main").startswith("branch etl created on commit ")
    assert staging.does("branch", "-d", "etl") == "branch etl deleted\n"


def test_a_commit_is_of_the_branch_or_of_a_file(staging: StagingCommands, tmp_path: Path) -> None:
    staging.does("put", "main", "a", "--text", "1")
    (tmp_path / "records.jsonl").write_text("")
    records = ("--records", tmp_path / "records.jsonl")
    for args, words in (
        ([], "Give -m TEXT"),
        (["-m", "x", "--prefix", "p/"], "--prefix is of the records of a file"),
        (["-m", "x", "--sst"], "--sst is of the records of a file"),
        ([*records, "--metarange", "0" * 64], "leave out --metarange, or --records"),
        ([*records, "--allow-empty"], "leave out --allow-empty, or --records"),
    ):
        assert words in staging.fails("commit", "main", *args, code=2), args
    assert "has uncommitted changes" in staging.fails("commit", "main", *records)
    assert len(staging.data("log", "main")["items"]) == 1


def test_a_history_of_commits_merges_and_reverts(staging: StagingCommands) -> None:
    staging.does("put", "main", "a", "--text", "1")
    staging.does("commit", "main", "-m", "first")
    assert "no changes to commit" in staging.fails("commit", "main", "-m", "again")
    staging.does("commit", "main", "-m", "empty", "--allow-empty")
    staging.does("branch", "etl", "main")
    staging.does("put", "etl", "b", "--text", "2")
    staging.does("commit", "etl", "-m", "second")
    merged = staging.data("merge", "etl", "main")
    assert merged["message"] == "Merge etl into main"
    assert len(merged["parents"]) == 2
    assert staging.keys("main@") == ["a", "b"]
    assert "several parents" in staging.fails("revert", "main", "main")
    staging.does("revert", "main", "main", "--parent", "1")
    assert staging.keys() == ["a"]
    staging.does("cherry-pick", "main", "etl", "-m", "picked")
    assert staging.keys() == ["a", "b"]
    log = staging.data("log", "main")["items"]
    assert [item["message"] for item in log][:3] == ["picked", "Revert main", "Merge etl into main"]
    assert log[-1]["message"] == "Repository created"
    assert len(staging.does("log", "main", "-o", "jsonl", "--amount", "2").splitlines()) == 2
    assert staging.does("log", "main").splitlines()[0].split() == ["COMMIT", "DATE", "COMMITTER", "MESSAGE"]
    assert staging.fails("log", "nope") == 'error: reference "nope" not found'
    assert staging.run("cherry-pick", "main", "etl", "--metadata", "a=b").exit_code == 2


def test_conflicts_are_named_and_a_strategy_resolves_them(staging: StagingCommands) -> None:
    staging.does("put", "main", "a", "--text", "1")
    staging.does("commit", "main", "-m", "first")
    staging.does("branch", "etl", "main")
    for branch in ("main", "etl"):
        staging.does("put", branch, "a", "--text", f"of {branch}")
        staging.does("commit", branch, "-m", branch)
    line = staging.fails("merge", "etl", "main")
    assert "'a'" in line
    assert "source-wins, dest-wins" in line
    staging.does("merge", "etl", "main", "--strategy", "source-wins")
    assert staging.data("list", "main", "a")["value"] == "of etl"
    assert staging.run("merge", "etl", "main", "--strategy", "mine").exit_code == 2


def test_resets_take_back_a_key_a_prefix_or_everything(staging: StagingCommands) -> None:
    staging.does("put", "main", "a", "--text", "1")
    staging.does("commit", "main", "-m", "first")
    for key in ("a", "p/1", "p/2", "q", "r"):
        staging.does("put", "main", key, "--text", "new")
    staging.does("reset", "main", "--key", "a", "--key", "q")
    assert staging.data("list", "main", "a")["value"] == "1"
    assert "below 'p/' discarded" in staging.does("reset", "main", "--prefix", "p/")
    assert staging.keys() == ["a", "r"]
    assert "has uncommitted changes" in staging.fails("reset", "main", "--hard", "main~1")
    staging.does("reset", "main", "--all")
    assert staging.keys() == ["a"]
    staging.does("reset", "main", "--hard", "main~1")
    assert staging.keys() == []
    for args in ([], ["--all", "--key", "a"], ["--prefix", ""]):
        assert staging.run("reset", "main", *args).exit_code == 2


def test_records_of_a_file_replace_what_is_below_the_prefixes(staging: StagingCommands, tmp_path: Path) -> None:
    for key in ("p/old", "q"):
        staging.does("put", "main", key, "--text", "1")
    staging.does("commit", "main", "-m", "first")
    values = {"p/1": raw_value(b"one"), "p/2": raw_value(b"two")}
    lines = [
        {"key": b64encode(key.encode()).decode(), "value": b64encode(value).decode()} for key, value in values.items()
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    made = staging.data("commit", "main", "--records", "-", "--prefix", "p/", input=text)
    assert made["message"] == "Import standard input"
    assert staging.keys() == ["p/1", "p/2", "q"]
    assert staging.data("list", "main", "p/2")["value"] == "two"
    (tmp_path / "records.jsonl").write_text(text)
    range_file = tmp_path / "range.sst"
    staging.does("debug", "sst", tmp_path / "records.jsonl", "--write", range_file, "--type", "ranges")
    staging.does("branch", "etl", "main~1")
    assert staging.data("commit", "etl", "--records", range_file, "--sst")["message"] == "Import range.sst"
    assert staging.keys("etl") == ["p/1", "p/2", "p/old", "q"]
    (tmp_path / "records.jsonl").write_text(text + text)
    line = staging.fails("commit", "etl", "--records", tmp_path / "records.jsonl")
    assert line.startswith(f"error: {tmp_path}/records.jsonl: line 3: the key 'p/1' is not greater than 'p/2'")
    assert staging.run("commit", "etl", "--records", "-", "--sst").exit_code == 2
    assert "No such file" in staging.fails("commit", "etl", "--records", tmp_path / "nothing")
