"""`compactor staging inspect`, `plan`, `compact`, `sweep` and `verify` as a user meets them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from compaction.cli.main import completions
from compaction.staging.compaction import claim, work_on
from compaction.staging.refs.names import COMMIT_KEYS
from support.object_stores import S3
from support.staging.staging_repos import REPOSITORY, StagingCommands
from tools.servers.postgres import PostgresServer


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
    assert {(item["kind"], item["due"]) for item in found} == {("token", False)}
    assert "nothing changed" in staged.does("sweep")
    assert objects(staged) == before
    swept = staged.data("sweep", "--apply")
    assert (swept["objects"], swept["tokens"]) == (0, 0), "tokens are noted first, and their base stays too"
    assert objects(staged) == before
    last = staged.data("sweep", "--apply", "--grace", "0s")
    assert last["tokens"] == len(found)
    assert last["objects"] == len(before) - len(objects(staged)) > 0
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


# How a staging area is named, and what happens when it is not there.


def test_options_win_over_the_environment(staging: StagingCommands, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    staging.does("repo", "second", tmp_path / "objects", "--kv", other)
    assert [item["name"] for item in staging.data("repo", "--kv", other)["items"]] == ["second"]
    staging.does("put", "main", "a", "--text", "x", "--kv", other, "--repo", "second")
    assert staging.data("list", "main", "--kv", other, "--repo", "second")["items"] != []
    assert staging.keys() == []


def test_what_is_missing_is_asked_for(staging: StagingCommands) -> None:
    staging.environment = {}
    assert "Give --kv URL, or set COMPACTION_KV_URL" in staging.run("list", "main", "--repo", "x").stderr
    assert "Give --repo NAME, or set COMPACTION_REPOSITORY" in staging.run("list", "main").stderr


def test_a_mistyped_file_does_not_become_a_store(staging: StagingCommands, tmp_path: Path) -> None:
    file = tmp_path / "mistyped.db"
    assert f"{file}: there is no key-value store here" in staging.fails("list", "main", "--kv", f"sqlite:///{file}")
    assert not file.exists()
    file.write_text("not a database")
    assert "error: " in staging.fails("list", "main", "--kv", f"sqlite:///{file}")
    assert "create a repository in it" in staging.fails("list", "main", "--table", "other")
    assert 'repository "nope" not found' in staging.fails("list", "main", "--repo", "nope")
    assert "is not the name of a repository" in staging.fails("list", "main", "--repo", "No Such")


def test_a_store_that_cannot_be_reached_is_named_without_its_password(staging: StagingCommands) -> None:
    url = "postgresql://user:hunter2@127.0.0.1:1/kv?connect_timeout=1"
    staging.environment = {"COMPACTION_KV_URL": url, "COMPACTION_REPOSITORY": REPOSITORY}
    line = staging.fails("branch")
    assert "127.0.0.1" in line
    assert "Check the URL in COMPACTION_KV_URL" in line
    assert "hunter2" not in line
    assert "use sqlite:///file, or postgresql://host/database" in staging.fails("branch", "--kv", "::")


def test_secrets_are_not_taken_from_the_command_line(staging: StagingCommands, tmp_path: Path) -> None:
    refused = staging.run("list", "main", "--kv", "postgresql://user:hunter2@host/kv")
    assert refused.exit_code == 2
    assert "COMPACTION_KV_URL" in refused.stderr
    assert "hunter2" not in refused.output
    refused = staging.run("list", "main", "--option", "secret_access_key=hunter2")
    assert refused.exit_code == 2
    assert "holds no secret" in refused.stderr
    assert "hunter2" not in refused.output
    assert staging.run("list", "main", "--option", "nothing").exit_code == 2
    (tmp_path / "options").write_text("[]")
    assert "holds no options" in staging.fails("list", "main", "--store-options", tmp_path / "options")
    assert "a folder has no options: name no credentials" in staging.fails("list", "main", "--option", "region=x")


def test_an_object_store_is_reached_with_a_file_of_options(
    staging: StagingCommands, s3: S3, postgres: PostgresServer, postgres_kv: str, tmp_path: Path
) -> None:
    bucket = s3.bucket()
    (tmp_path / "options").write_text("".join(f"{name}: '{value}'\n" for name, value in s3.gateway.options().items()))
    staging.environment = {
        "COMPACTION_KV_URL": postgres.url(postgres_kv),
        "COMPACTION_REPOSITORY": "in-s3",
        "COMPACTION_STORE_OPTIONS_FILE": str(tmp_path / "options"),
    }
    staging.does("repo", "in-s3", f"{bucket}/area")
    staging.does("put", "main", "a", "--text", "x")
    staging.does("commit", "main", "-m", "first")
    staging.does("rm", "main", "a")
    staging.does("compact", "main")
    assert staging.data("verify")["problems"] == []
    assert staging.keys() == []
    assert staging.keys("main@") == ["a"]


def test_commands_and_their_options_are_completed() -> None:
    names = [line.split("\t")[0] for line in completions(["staging", ""])]
    assert {"repo", "branch", "put", "compact", "debug"} <= set(names)
    assert next(line.split("\t")[0] for line in completions(["staging", "debug", "s"])) == "sst"
    assert completions(["staging", "merge", "--strategy", "so"])[0].startswith("source-wins")
    assert any(line.startswith("--repo") for line in completions(["staging", "list", "--re"]))


@pytest.mark.parametrize("command", [["repo"], ["branch"], ["debug"], ["debug", "sst"], ["plan"], ["debug", "exec"]])
def test_every_command_has_help(staging: StagingCommands, command: list[str]) -> None:
    assert staging.does(*command, "--help").startswith("Usage: ")


def test_a_policy_names_the_repository_and_brings_its_secrets(staging: StagingCommands, tmp_path: Path) -> None:
    staging.exec(
        [
            {"op": "set_many", "branch": "main", "values": {"a": "1", "b": "1"}},
            {"op": "commit", "branch": "main"},
            {"op": "delete_many", "branch": "main", "keys": ["a", "b"]},
        ]
    )
    staging.does("branch", "idle", "main")
    alone = StagingCommands(staging.connection)
    area = {"repository": REPOSITORY, "kv": {"secretName": "kv"}, "exclude": ["idle"], "thresholds": {"tombstones": 2}}
    policy = {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": "lake"},
        "spec": {"store": {"stagingArea": area}},
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kv"}}
    values = {"stringData": {"url": staging.connection.kv_url}}
    file, bare = tmp_path / "policy.yaml", tmp_path / "bare.yaml"
    file.write_text("\n---\n".join(json.dumps(item) for item in (policy, secret | values)))
    bare.write_text(json.dumps(policy))
    (row,) = alone.data("plan", "-f", file)["items"]
    assert (row["branch"], row["due"]) == ("main", "2 tombstones")
    assert [item["name"] for item in alone.data("inspect", "-f", file)["items"]] == ["main"]
    assert alone.data("verify", "-f", file)["problems"] == []
    mounted = tmp_path / "secrets" / "kv"
    mounted.mkdir(parents=True)
    (mounted / "url").write_text(staging.connection.kv_url)
    assert alone.data("compact", "main", "-f", bare, "--secrets-dir", mounted.parent)["compacted"]["tokens"] == 1
    assert 'Secret "kv"' in alone.fails("plan", "-f", bare)
    assert "leave out --repo" in alone.fails("plan", "-f", file, "--repo", "other", code=2)
    assert "leave out --tombstones" in alone.fails("plan", "-f", file, "--tombstones", "5", code=2)
    assert [item["branch"] for item in staging.data("plan", "-f", file)["items"]] == ["main"], (
        "the environment gives way"
    )
