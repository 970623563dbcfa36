"""`compactor catalogs plan` and `compact`, on a real etcd and a served participant."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Role
from compaction.catalogs.serving.server import ParticipantServer
from compaction.cli.main import main
from support.catalogs.etcd_members import EtcdStore, Members
from support.catalogs.participants import answer, participant, raw_server, says
from support.catalogs.rounds import THREE_NAMES
from support.clocks import eventually
from support.endpoints import SECRET, Endpoint, serving_process

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


# `compactor catalogs serve` as a process, and `compactor catalogs debug conformance` against it and what is broken.


@pytest.fixture
def served(secret: Path, tmp_path: Path) -> Iterator[tuple[int, Endpoint]]:
    command = ["catalogs", "serve", "--name=node1", "--admin", f"--watermark-file={tmp_path}/watermark"]
    command += ["--checkpoint-interval=0.1s", "--availability=1s", "--update-interval=0.2s"]
    with serving_process(command, ParticipantServer, secret=secret, log=tmp_path / "log", environment={}) as running:
        yield running


def conformance(port: int, secret: Path, *options: str) -> int:
    return main(
        ["catalogs", "debug", "conformance", f"http://127.0.0.1:{port}", "--secret-file", str(secret), *options]
    )


def test_it_becomes_ready_by_itself_and_keeps_its_watermark(
    served: tuple[int, Endpoint], secret: Path, tmp_path: Path
) -> None:
    pid, endpoint = served
    body = {"tableId": 5, "partition": 0, "role": "Primary"}
    endpoint.call("POST", "/v1/admin/add-partition", json.dumps(body).encode())
    eventually(lambda: endpoint.call("GET", "/v1/report").body["lowWatermark"] != "0", "a watermark")
    found = endpoint.call("GET", "/v1/report").body
    assert found["subject"] == "table 5 partition 0"
    minimum = {"timestamp": found["transactions"], "token": 1}
    assert endpoint.call("POST", "/v1/minimum", json.dumps(minimum).encode()).status == 200
    eventually(lambda: endpoint.call("GET", "/v1/report").body["cause"] != "NotReady", "a checkpoint")
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: "listening" in _text(tmp_path / "log"), "its end")
    assert int((tmp_path / "watermark").read_text()) > hybrid(1)


def test_it_follows_a_catalog(
    secret: Path, tmp_path: Path, empty_place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its transactions hold the catalog's own versions; no caller lists them."""
    command = ["catalogs", "serve", "--name=node1", "--admin", "--no-old-rows", *empty_place]
    with serving_process(command, ParticipantServer, secret=secret, log=tmp_path / "log", environment={}) as (
        _,
        endpoint,
    ):
        ddl = tmp_path / "ddl.yaml"
        ddl.write_text("- {type: CREATE_SCHEMA, schema: A}")
        assert main(["catalogs", "apply", str(ddl), *empty_place]) == 0
        capsys.readouterr()
        assert main(["catalogs", "list", *empty_place, "-o", "json"]) == 0
        active = json.loads(capsys.readouterr().out)
        assert endpoint.call("POST", "/v1/admin/begin", b"{}").status == 200
        report = endpoint.call("GET", "/v1/report").body
        assert report["transactions"] == str(active[-1]["activationTime"])
        assert report["readsOldRows"] is False
        refused = endpoint.call("POST", "/v1/admin/add-version", b'{"version": 9, "activation": "9"}')
        assert "this participant follows a catalog" in refused.body["message"]
    assert main(["catalogs", "serve", "--name=n", f"--secret-file=c={secret}", "--prefix=/x"]) == 2
    assert "--etcd" in capsys.readouterr().err


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_the_reference_conforms(secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["catalogs", "serve", "--name=node1", "--admin"]
    with serving_process(command, ParticipantServer, secret=secret, log=tmp_path / "log", environment={}) as (_, one):
        assert conformance(one.port, secret, "--admin", "--max-skew=1h") == 0
        lines = capsys.readouterr()
        assert {line.split()[0] for line in lines.out.splitlines()} == {"pass"}
        assert "30 of 30 rules hold" in lines.err
        assert conformance(one.port, secret, "-o", "json", "--coordinator-token=5", "--max-skew=1h") == 0
        found = json.loads(capsys.readouterr().out)
        assert {item["result"] for item in found} == {"pass"}


def test_what_is_broken_is_a_line_with_its_name(secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with raw_server(says(answer(b"{}"))) as port:
        assert conformance(port, secret) == 1
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["pass", "health-answers"] in lines
    assert ["fail", "report-has-the-form"] in lines
    assert ["not", "run"] in lines


def test_what_cannot_be_started_says_why(secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, empty, odd = tmp_path / "watermark", tmp_path / "empty", tmp_path / "odd"
    damaged.write_text("soon")
    empty.write_text("\n")
    odd.write_bytes(b"\xff\xfe")
    given = ["--secret-file", f"c={secret}"]
    for words, said in (
        (["serve", "--name=n"], "give --secret-file or --allow-service-account"),
        (["serve", "--name=a\tb", *given], "printable characters"),
        (["serve", "--name=n", *given, f"--watermark-file={damaged}"], "does not hold a hybrid timestamp"),
        (["serve", "--name=n", *given, "--bind-address=0.0.0.0"], "travel readably"),
        (["debug", "conformance", "http://127.0.0.1:1"], "--secret-file"),
        (["debug", "conformance", "http://127.0.0.1:1", f"--secret-file={empty}"], "holds no secret"),
        (["debug", "conformance", "http://127.0.0.1:1", f"--secret-file={odd}"], "ASCII"),
        (["debug", "conformance", "http://127.0.0.1:1", f"--secret-file={secret}", f"--ca={empty}"], "certificates"),
        (["debug", "conformance", "http://10.0.0.3:1", f"--secret-file={secret}"], "travel readably"),
    ):
        assert main(["catalogs", *words]) in {1, 2}, words
        assert said in capsys.readouterr().err, words
