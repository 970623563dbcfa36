"""`compactor catalogs plan` and `compact`, on a real etcd and a served participant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Role
from compaction.cli.main import main
from support.catalogs.ddl import THREE_NAMES
from support.catalogs.endpoints import participant
from support.catalogs.etcd_members import EtcdStore, Members
from support.stores.ingest import SECRET

NOW = ("--data-availability", "0s", "--max-clock-skew", "1ms")


@pytest.fixture
def place(empty_place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Of a log with six versions, all active for longer than clocks differ."""
    ddl = tmp_path / "ddl.yaml"
    ddl.write_text(THREE_NAMES)
    assert main(["catalogs", "apply", str(ddl), *empty_place, "--delay", "1", "--max-skew", "0"]) == 0
    capsys.readouterr()
    return empty_place


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return file


def shown(capsys: pytest.CaptureFixture[str], command: str, *args: object) -> tuple[int, Any]:
    code = main(["catalogs", command, *map(str, args), "-o", "json"])
    output = capsys.readouterr()
    return code, json.loads(output.out) if output.out else output.err


def versions(capsys: pytest.CaptureFixture[str], place: list[str]) -> list[tuple[int, int]]:
    """(number, activation time) of those that the log keeps."""
    code, found = shown(capsys, "list", *place)
    assert code == 0
    return [(item["version"], item["activationTime"]) for item in found]


def checkpointed(one: ReferenceParticipant) -> None:
    """Everything that it needed is published: it needs the catalog from now on."""
    now = one.now()
    one.move_watermark(now)
    one.store_minimum(now)
    one.begin_checkpoint()
    one.finish_checkpoint()


@pytest.fixture
def node(capsys: pytest.CaptureFixture[str], place: list[str]) -> ReferenceParticipant:
    found = ReferenceParticipant("node1")
    for version, time in versions(capsys, place):
        found.versions.add(version, time)
    _, latest = shown(capsys, "inspect", *place)
    (table,) = [table for schema in latest["schemas"] for table in schema["tables"]]
    found.add_partition(table["id"], 0, Role.PRIMARY)
    return found


def test_history_is_cut_as_far_as_the_participant_allows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, place: list[str], secret: Path, node: ReferenceParticipant
) -> None:
    before = versions(capsys, place)
    assert [number for number, _ in before] == [1, 2, 3, 4, 5, 6]
    with participant(node, tmp_path) as endpoint:
        capsys.readouterr()  # the endpoint says that it listens
        asked = ["--participant", f"node1=http://127.0.0.1:{endpoint.port}", "--secret-file", secret, *NOW]

        code, found = shown(capsys, "plan", *asked, *place)
        assert (code, found["compaction"]["outcome"], found["participants"][0]["answer"]) == (
            1,
            "NoWatermark",
            "Received",
        )
        assert found["requiredTime"] == found["compaction"], "it is not known"
        code, found = shown(capsys, "plan", *asked)
        assert (code, found["requiredTime"]["outcome"], found["compaction"]) == (1, "NoWatermark", None)

        checkpointed(node)
        code, found = shown(capsys, "plan", *asked)
        (row,), pin = found["participants"], found["requiredTime"]
        assert (code, row["name"], row["partitions"], row["answer"]) == (0, "node1", 1, "Received")
        assert (pin["pinnedBy"], pin["reason"], found["compaction"]) == ("node1", "Replay", None)
        node.begin()
        code, found = shown(capsys, "plan", *asked)
        assert (code, found["requiredTime"]["pinnedBy"], found["requiredTime"]["reason"]) == (0, "node1", "Transaction")

        code, found = shown(capsys, "plan", *asked, *place)
        assert (code, found["compaction"]["outcome"]) == (0, "DryRun")
        assert found["compaction"].items() >= found["requiredTime"].items(), "the same round"
        assert main(["catalogs", "plan", *map(str, asked), *place]) == 0
        table = capsys.readouterr().out
        assert [line.split()[0] for line in table.splitlines()[:2]] == ["NAME", "node1"]
        assert table.count("pinnedBy:") == 1
        assert "versions 1 to 4 would be cut" in table
        assert versions(capsys, place) == before

        code, found = shown(capsys, "compact", *asked, *place, "--token", 7)
        assert (code, found["outcome"], found["earliest"], found["versions"]) == (0, "Saved", 5, 4)
        assert versions(capsys, place) == before[4:]
        code, found = shown(capsys, "compact", *asked, *place, "--token", 7)
        assert (code, found["outcome"]) == (0, "NothingToCompact")


@pytest.mark.parametrize("old_rows", [True, False])
def test_column_sets_are_dropped_when_the_participant_reads_no_old_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, empty_place: list[str], secret: Path, old_rows: bool
) -> None:
    ddl = tmp_path / "ddl.yaml"
    added = "".join(
        f"- {{type: ADD_COLUMN, schema: PUBLIC, table: T0, columns: [{{name: C{n}, type: INT32, nullable: true}}]}}\n"
        for n in range(3)
    )
    ddl.write_text(THREE_NAMES.split("- {type: RENAME_TABLE")[0] + added)
    assert main(["catalogs", "apply", str(ddl), *empty_place, "--delay", "1", "--max-skew", "0"]) == 0
    capsys.readouterr()
    node = ReferenceParticipant("node1", reads_old_rows=old_rows)
    for version, time in versions(capsys, empty_place):
        node.versions.add(version, time)
    _, latest = shown(capsys, "inspect", *empty_place)
    (table,) = [table for schema in latest["schemas"] for table in schema["tables"]]
    node.add_partition(table["id"], 0, Role.PRIMARY)
    checkpointed(node)
    with participant(node, tmp_path) as endpoint:
        capsys.readouterr()
        asked = ["--participant", f"node1=http://127.0.0.1:{endpoint.port}", "--secret-file", secret, *NOW]
        code, found = shown(capsys, "compact", *asked, *empty_place, "--token", 7, "--trim")
        assert (code, found["outcome"], found["trimmed"]) == (0, "Saved", not old_rows)
    _, first = shown(capsys, "inspect", *empty_place, "--version", found["earliest"])
    (table,) = [table for schema in first["schemas"] for table in schema["tables"]]
    assert len(table["versions"]) == (3 if old_rows else 1)


def test_a_token_that_is_not_larger_says_which_is(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    etcd: Members,
    place: list[str],
    secret: Path,
    node: ReferenceParticipant,
) -> None:
    before = versions(capsys, place)
    checkpointed(node)
    with participant(node, tmp_path) as endpoint:
        capsys.readouterr()
        asked = ["--participant", f"node1=http://127.0.0.1:{endpoint.port}", "--secret-file", secret, *NOW]
        with EtcdStore(etcd, prefix=place[-1]) as store:
            assert store.open().claim(7) == 7
        for token in (6, 7):
            code, found = shown(capsys, "compact", *asked, *place, "--token", token)
            assert (code, found["outcome"]) == (1, "Fenced")
            assert "name a larger one, such as --token 8" in found["message"]
        assert versions(capsys, place) == before
        code, found = shown(capsys, "compact", *asked, *place, "--token", 8)
        assert (code, found["outcome"]) == (0, "Saved")


def test_a_participant_that_does_not_answer_is_named(
    capsys: pytest.CaptureFixture[str], place: list[str], secret: Path
) -> None:
    asked = ["--participant", "gone=http://127.0.0.1:9", "--secret-file", secret]
    code, found = shown(capsys, "compact", *asked, *place, "--token", 1)
    assert (code, found["outcome"]) == (1, "NoAnswer")
    assert "gone" in found["message"]
    assert len(versions(capsys, place)) == 6
    for where in ([], place):
        code, found = shown(capsys, "plan", *asked, *where)
        (row,) = found["participants"]
        assert (code, row["name"], row["answer"].split(":")[0]) == (1, "gone", "NoAnswer")
        assert found["requiredTime"]["outcome"] == "NoAnswer"
        assert found["compaction"] == (found["requiredTime"] if where else None)


def test_wrong_usage(capsys: pytest.CaptureFixture[str], secret: Path) -> None:
    asked = ["--participant", "a=http://127.0.0.1:9", "--secret-file", secret]
    place = ["--etcd", "http://127.0.0.1:9", "--prefix", "/c"]
    wrong = (
        (["compact", *asked, *place], "--token"),
        (["compact", *asked, "--token", 1], "--etcd"),
        (["plan", *asked, *place, "--token", 1], "--token"),
        (["plan", *asked, "--trim"], "--trim needs the update log"),
        (["plan", *asked, "--prefix", "/c"], "--etcd"),
        (["plan", "--participant", "http://x", "--secret-file", secret], "NAME=URL"),
    )
    for args, word in wrong:
        code, said = shown(capsys, *map(str, args))
        assert (code, word in said) == (2, True), (args, said)
