"""How a staging area is named, and what happens when it is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compaction.cli.main import completions
from support.stores.s3 import S3
from support.stores.staging_commands import REPOSITORY, StagingCommands
from tools.servers.postgres import PostgresServer


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
