"""`compactor staging lakefs` as an operator of a lakeFS meets it, on PostgreSQL; the servers are played."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from compaction.staging.cli.commands import group
from compaction.staging.cli.lakefs import merge as merge_command
from compaction.staging.format.messages import bytes_field
from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from compaction.staging.lakefs.control import MergeLease
from compaction.staging.lakefs.merging import merge_branch
from compaction.staging.lakefs.repository import open_live_repository
from compaction.staging.refs.names import REPOSITORIES_PARTITION
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.staging.lakefs_server import LakeFsServer
from support.staging.staging_repos import SMALL_RANGES, StagingRepo
from tools.servers.postgres import PostgresServer

AT_ONCE = ("--quiet", "0s", "--busy", "0s")


@pytest.fixture
def kv_url(postgres: PostgresServer, postgres_kv: str) -> str:
    return postgres.url(postgres_kv)


@pytest.fixture
def kv(kv_url: str) -> Iterator[SqlKeyValueStore]:
    store = open_key_value_store(kv_url)
    yield store
    store.close()


@pytest.fixture
def server(kv: SqlKeyValueStore, tmp_path: Path) -> LakeFsServer:
    """The keys `a` to `e` are committed; two sealed tokens replace `a` and delete `b`, `n` and `o`."""
    folder = f"{tmp_path}/objects"
    ranges = RangeStorage(open_objects(folder), rule=SMALL_RANGES)
    server = LakeFsServer(kv, ranges).create({key: f"{key} committed" for key in "abcde"}, namespace=folder)
    server.put_sealed({"a": "2", "n": None}, {"a": "1", "b": None, "o": None})
    return server


@dataclass
class LakeFsCommands:
    """`run(...)` runs a command on the key-value store that the environment names."""

    kv_url: str

    def run(self, *args: str) -> Result:
        result = CliRunner().invoke(group, ["lakefs", *args], env={"COMPACTION_KV_URL": self.kv_url})
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert "Traceback" not in result.output
        return result

    def data(self, *args: str, code: int = 0) -> Any:
        result = self.run(*args, "-o", "json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def fails(self, *args: str) -> str:
        result = self.run(*args)
        assert result.exit_code == 1, result.output
        return result.stderr


@pytest.fixture
def lakefs(kv_url: str) -> LakeFsCommands:
    return LakeFsCommands(kv_url)


def test_branches_are_inspected(lakefs: LakeFsCommands, server: LakeFsServer) -> None:
    server.create_branch("idle", server.branch().commit_id)
    server.set("x", "1")
    idle, main = lakefs.data("inspect")["items"]
    assert (idle["branch"], idle["sealedTokens"], idle["statements"]) == ("idle", 0, 2)
    assert idle["whyNot"] == "it has 0 tokens to merge, 2 are the least"
    assert (main["sealedTokens"], main["sealedRows"], main["tombstones"], main["stagingRows"]) == (2, 5, 3, 1)
    assert (main["statements"], main["unchangedSeconds"], main["whyNot"]) == (4, None, "")
    assert [item["rows"] for item in main["sealed"]] == [2, 3]
    shown = lakefs.run("inspect", server.name).stdout
    assert shown.splitlines()[-1] == "2 branches with 2 sealed tokens"
    assert server.branch().sealed_tokens[0] in lakefs.run("inspect", server.name, "-o", "wide").stdout
    assert " 2+ " in lakefs.run("inspect", "--limit", "1").stdout


def test_a_merge_is_a_dry_run_at_first_which_reports_a_plan(lakefs: LakeFsCommands, server: LakeFsServer) -> None:
    row = server.row()
    report = lakefs.data("merge", "main", "--repo", server.name)
    assert (report["applied"], report["problems"]) == (False, [])
    (planned,) = report["items"]
    assert (planned["tokens"], planned["rowsBefore"], planned["rowsAfter"]) == (2, 5, 2)
    assert (planned["statementsBefore"], planned["statementsAfter"], planned["whyNot"]) == (4, 3, "")
    assert (planned["hiddenRows"], planned["tombstones"], planned["idleTombstones"]) == (1, 1, 2)
    dry = lakefs.run("merge", "--repo", server.name, *AT_ONCE)
    assert dry.stdout.splitlines()[-1] == (
        "1 branch would be merged, 3 rows fewer; nothing was changed (`merge --apply` does it)"
    )
    assert server.row() == row


def test_a_merge_shows_the_same_and_its_end_is_cleaned_up(lakefs: LakeFsCommands, server: LakeFsServer) -> None:
    before, old = server.listed(), server.branch().sealed_tokens
    merge = ("merge", "main", "--repo", server.name, *AT_ONCE, "--apply")
    merged = lakefs.data(*merge, "--grace", "0s")["items"][0]
    assert (merged["end"], merged["tokens"], merged["rowsBefore"], merged["rowsAfter"]) == ("merged", 2, 5, 2)
    assert server.branch().sealed_tokens == (merged["fresh"],)
    assert server.listed() == before
    (check,) = lakefs.data("verify", "--repo", server.name)["items"]
    assert (check["branch"], check["possible"], check["oldTokens"]) == ("main", True, list(old))
    assert "yes" in lakefs.run("verify", "main", "--repo", server.name).stdout
    again = lakefs.run(*merge)
    assert "0 branches of 1 merged" in again.stdout
    assert "it has 1 tokens to merge" in again.stdout
    found = lakefs.data("sweep", "--repo", server.name)
    assert [(item["branch"], item["state"], item["whyNot"]) for item in found["items"]] == [("main", "swapped", "")]
    assert found["items"][0]["tokens"] == list(old)
    said = lakefs.run("sweep", "--repo", server.name).stdout.splitlines()[-1]
    assert said == "1 merge would end, 2 tokens would be dropped; nothing was changed (`sweep --apply` does it)"
    assert list(server.rows_of(old).values()) == [2, 3]
    ended = lakefs.data("sweep", "--repo", server.name, "--apply")
    assert (ended["droppedTokens"], ended["droppedRows"], ended["inUse"]) == (2, 5, [])
    assert server.rows_of(old) == dict.fromkeys(old, 0)
    assert server.listed() == before
    assert lakefs.data("sweep", "--repo", server.name)["items"] == []
    assert "nothing could be undone" in lakefs.run("verify", "--repo", server.name).stdout


def test_the_staging_token_is_sealed_on_request(lakefs: LakeFsCommands, server: LakeFsServer) -> None:
    server.set("a", "3")
    before = server.listed()
    given = ("main", "--repo", server.name, *AT_ONCE, "--seal-staging")
    assert lakefs.data("merge", *given)["items"][0]["tokens"] == 3
    assert lakefs.data("merge", *given, "--apply")["items"][0]["rowsAfter"] == 2
    assert (server.listed(), len(server.branch().sealed_tokens)) == (before, 1)


def test_a_merge_that_cannot_be_undone_is_named(lakefs: LakeFsCommands, server: LakeFsServer) -> None:
    lakefs.run("merge", "--repo", server.name, *AT_ONCE, "--apply")
    server.commit()
    result = lakefs.run("verify", "--repo", server.name)
    assert (result.exit_code, "it was committed, reset or merged again" in result.stdout) == (1, True)


def test_leftovers_of_a_merge_stay_for_the_grace(lakefs: LakeFsCommands, server: LakeFsServer) -> None:
    lakefs.run("merge", "--repo", server.name, *AT_ONCE, "--apply")
    for options in ([], ["--apply"]):
        lakefs.run("sweep", "--repo", server.name, *options)
        table, last = lakefs.run("sweep", "--repo", server.name).stdout.splitlines()[1:]
        assert table.split()[:4] == ["main", "swapped", "0", "5h59m"]
        assert "its grace is not over" in table
        assert last.startswith("0 merges would end, 0 tokens would be dropped; nothing was changed")


def test_tokens_of_a_deleted_repository_are_swept_with_those_of_another(
    lakefs: LakeFsCommands, server: LakeFsServer, kv: SqlKeyValueStore, tmp_path: Path
) -> None:
    gone = LakeFsServer(kv, server.ranges, name="gone").create({"a": "1"}, namespace=f"{tmp_path}/objects")
    gone.put_sealed({"a": "2"}, {"a": "3"})
    lakefs.run("merge", "--repo", "gone", *AT_ONCE, "--grace", "0s", "--apply")
    kv.delete(REPOSITORIES_PARTITION, b"repos/gone")
    kv.delete(gone.partition, b"branches/main")
    sweep = ("sweep", "--repo", server.name)
    assert lakefs.run(*sweep).stderr == "deleted repositories: 3 tokens would be dropped\n"
    assert lakefs.run(*sweep, "--apply").stderr == "deleted repositories: 3 tokens with 3 rows\n"
    assert lakefs.run(*sweep).stderr == ""


def test_merging_is_held_and_released(lakefs: LakeFsCommands, server: LakeFsServer) -> None:
    assert lakefs.run("hold").stdout == "merging is not stopped\n"
    assert lakefs.run("hold", "--reason", "maintenance").stdout == "merging is stopped (maintenance)\n"
    assert lakefs.data("hold") == {"stopped": "maintenance"}
    (main,) = lakefs.data("inspect")["items"]
    assert main["whyNot"] == "merging is stopped (maintenance)"
    assert lakefs.run("inspect").stdout.splitlines()[-1] == (
        "merging is stopped (maintenance); `compactor staging lakefs hold --release` allows it"
    )
    assert "merging is stopped" in lakefs.run("merge", "--repo", server.name, *AT_ONCE, "--apply").stdout
    assert len(server.branch().sealed_tokens) == 2
    assert lakefs.data("sweep", "--repo", server.name)["stopped"] == "maintenance"
    assert lakefs.data("sweep", "--repo", server.name, "--apply")["stopped"] == "maintenance"
    assert lakefs.run("hold", "--reason", "other", "--release").exit_code == 2
    assert "was stopped: maintenance" in lakefs.run("hold", "--release").stdout
    assert "was not stopped" in lakefs.run("hold", "--release").stdout
    assert "1 branch of 1 merged" in lakefs.run("merge", "--repo", server.name, *AT_ONCE, "--apply").stdout


def test_a_branch_of_another_merger_is_left_to_it(
    lakefs: LakeFsCommands, server: LakeFsServer, kv: SqlKeyValueStore
) -> None:
    assert MergeLease.acquire(open_live_repository(kv, server.name), "main", seconds=300)
    answer = lakefs.data("merge", "main", "--repo", server.name, *AT_ONCE, "--apply")["items"][0]
    assert (answer["end"], "holds the lease of the branch for another" in answer["reason"]) == ("held", True)
    (main,) = lakefs.data("inspect")["items"]
    assert "a merger that was killed holds it until then" in main["whyNot"]


def test_many_branches_wait_for_their_quiet_periods_together(
    lakefs: LakeFsCommands, server: LakeFsServer, kv: SqlKeyValueStore
) -> None:
    """Every one waits at the same time: none of them ends its wait before all have begun."""
    for name in ("one", "two", "three"):
        server.create_branch(name, server.branch().commit_id)
        server.put_sealed({"a": name}, {"b": name}, branch=name)
    started = time.monotonic()
    items = lakefs.data("merge", "--repo", server.name, "--busy", "0s", "--quiet", "2s", "--apply")["items"]
    assert [item["end"] for item in items] == ["merged"] * 4
    # One after the other they would take four times the quiet period by the clock alone, whatever the machine does.
    assert sum(item["seconds"] for item in items) > time.monotonic() - started


def test_a_branch_that_fails_for_no_known_reason_hides_no_outcome(
    lakefs: LakeFsCommands, server: LakeFsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_branch("bad", server.branch().commit_id)

    def failing(live: Any, branch: str, *more: Any) -> Any:
        return [][7] if branch == "bad" else merge_branch(live, branch, *more)

    monkeypatch.setattr(merge_command, "merge_branch", failing)
    result = lakefs.run("merge", "--repo", server.name, *AT_ONCE, "--apply")
    assert result.exit_code == 1
    assert "1 branch of 2 merged" in result.stdout
    assert "branch bad: an unexpected IndexError at" in result.stderr


def test_a_namespace_that_is_nowhere_here_keeps_no_inspection(lakefs: LakeFsCommands, kv: SqlKeyValueStore) -> None:
    """`inspect` reads no object."""
    ranges = RangeStorage(open_objects("memory-of-no-server"), rule=SMALL_RANGES)
    LakeFsServer(kv, ranges, name="elsewhere").create({}, namespace="local://elsewhere")
    (found,) = lakefs.data("inspect", "elsewhere")["items"]
    assert (found["branch"], found["whyNot"]) == ("main", "it has 0 tokens to merge, 2 are the least")


def test_objects_that_are_elsewhere_here(lakefs: LakeFsCommands, kv: SqlKeyValueStore, tmp_path: Path) -> None:
    ranges = RangeStorage(open_objects(f"{tmp_path}/data"), rule=SMALL_RANGES)
    server = LakeFsServer(kv, ranges).create({"a": "1"}, namespace="local://example")
    server.put_sealed({"a": "2"}, {"a": None})
    assert "local" in lakefs.fails("merge", "--repo", server.name)
    assert lakefs.data("merge", "--repo", server.name, "--objects", f"{tmp_path}/data")["items"][0]["rowsAfter"] == 1


def test_what_is_refused_is_named_and_the_rest_reported(
    lakefs: LakeFsCommands, server: LakeFsServer, kv: SqlKeyValueStore
) -> None:
    server.create_branch("broken", server.branch().commit_id)
    kv.set(server.partition, b"branches/broken", bytes_field(1, b"other"))
    LakeFsServer(kv, server.ranges, name="deleted").create({}, state=1)
    result = lakefs.run("inspect", "-o", "json")
    assert result.exit_code == 1
    assert [load["branch"] for load in json.loads(result.stdout)["items"]] == ["broken", "main"]
    assert "its row is of branch 'other'" in result.stderr
    assert "it is not active (state 1: it is being deleted)" in result.stderr
    mixed = lakefs.run("merge", "main", "broken", "gone", "--repo", server.name)
    assert mixed.exit_code == 1
    assert "1 branch would be merged" in mixed.stdout
    assert 'branch "gone"' in mixed.stderr


def test_what_is_no_live_lakefs_is_refused(
    lakefs: LakeFsCommands, kv: SqlKeyValueStore, server: LakeFsServer, tmp_path: Path
) -> None:
    StagingRepo(kv, server.ranges, name="ours")
    assert [item["repository"] for item in lakefs.data("inspect")["items"]] == [server.name]
    assert "it is a repository of this project" in lakefs.fails("merge", "--repo", "ours")
    assert "nowhere" in lakefs.fails("merge", "--repo", "nowhere", "--apply")
    kv.set("kv-internal-metadata", b"kv/schema/version", b"5")
    assert "version '5'" in lakefs.fails("inspect")
    file = tmp_path / "kv.db"
    other = open_key_value_store(f"sqlite:///{file}")
    other.migrate()
    other.close()
    assert "supported on PostgreSQL only" in lakefs.fails("inspect", "--kv", f"sqlite:///{file}")
    for options in ([], ["--reason", "maintenance"], ["--release"]):
        assert "supported on PostgreSQL only" in lakefs.fails("hold", *options, "--kv", f"sqlite:///{file}")
    assert "no password" in lakefs.run("inspect", "--kv", "postgresql://u:secret@localhost/x").stderr
