"""Repositories, branches, tags, commits, merges and resets on the command line."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

from compaction.staging.cli.values import raw_value
from support.stores.staging_commands import StagingCommands


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
