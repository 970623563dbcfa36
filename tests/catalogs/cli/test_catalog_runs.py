"""`compactor run` on a file with catalogs: a real etcd, participants as processes, no Kubernetes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.catalogs.compaction.round import history_of
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.serving.server import ParticipantServer
from compaction.cli.main import main
from support.catalogs.etcd_members import Members
from support.catalogs.rounds import THREE_NAMES
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import exit_code
from support.cluster.orders import catalog_object
from support.endpoints import SECRET, Endpoint, serving_process


def shown(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, Any, str]:
    capsys.readouterr()
    code = exit_code([*map(str, args), "-o", "json"])
    output = capsys.readouterr()
    return code, json.loads(output.out) if output.out else None, output.err


class Desk:
    """A catalog of six versions, one participant with a partition of its table, and the file that names both."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], place: list[str], endpoint: Endpoint, directory: Path
    ) -> None:
        self.capsys, self.place, self.endpoint, self.directory = capsys, place, endpoint, directory
        self.file = directory / "catalogs.yaml"
        _, self.versions, _ = shown(capsys, "catalogs", "list", *place)
        _, latest, _ = shown(capsys, "catalogs", "inspect", *place)
        (table,) = [table for schema in latest["schemas"] for table in schema["tables"]]
        for version in self.versions:
            self.act("add-version", version=version["version"], activation=str(version["activationTime"]))
        self.act("add-partition", tableId=table["id"], partition=0, role="Primary")
        self.write()

    def act(self, action: str, **body: Any) -> Any:
        answer = self.endpoint.call("POST", f"/v1/admin/{action}", json.dumps(body).encode())
        assert answer.status == 200, answer
        return answer.body

    def catalog(self, name: str = "orders", **spec: Any) -> dict[str, Any]:
        members: dict[str, Any] = {
            "catalog": {"endpoints": [self.place[1]], "prefix": self.place[3]},
            "participants": {
                "urls": [{"name": "node1", "url": f"http://127.0.0.1:{self.endpoint.port}"}],
                "token": {"secretName": "participants"},
            },
            "lowWatermark": {"updateInterval": "1s", "dataAvailability": "0s"},
            "maxClockSkew": "100ms",
            "interval": "500ms",
        }
        return catalog_object(name, **(members | spec))

    def write(self, *others: dict[str, Any], secret: bool = True, **spec: Any) -> None:
        documents = [self.catalog(**spec), *others]
        if secret:
            documents.append(
                {"kind": "Secret", "metadata": {"name": "participants"}, "stringData": {"token": SECRET + "\n"}}
            )
        fresh = self.file.with_suffix(".new")
        fresh.write_text(yaml.safe_dump_all(documents))
        fresh.replace(self.file)

    def run(self, *options: str) -> tuple[int, Any, str]:
        return shown(self.capsys, "run", "-f", self.file, *options)

    def kept(self) -> list[int]:
        _, rows, _ = shown(self.capsys, "catalogs", "list", *self.place)
        return [row["version"] for row in rows]


@pytest.fixture
def desk(empty_place: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    ddl, secret = tmp_path / "ddl.yaml", tmp_path / "secret"
    ddl.write_text(THREE_NAMES)
    secret.write_text(SECRET + "\n")
    assert main(["catalogs", "apply", str(ddl), *empty_place, "--delay", "1", "--max-skew", "0"]) == 0
    command = ["catalogs", "serve", "--name=node1", "--admin", "--checkpoint-interval=0.1s"]
    command += ["--availability=0.1s", "--update-interval=0.1s"]
    with serving_process(command, ParticipantServer, secret=secret, log=tmp_path / "log", environment={}) as (_, one):
        yield Desk(capsys, empty_place, one, tmp_path)


def test_rounds_cut_what_is_allowed_and_say_what_pins_the_rest(desk: Desk) -> None:
    transaction = desk.act("begin")["timestamp"]
    code, (first,), told = desk.run()
    assert (code, first["compaction"]["reason"]) in {(1, "UndefinedPartition"), (1, "NoWatermark")}
    assert "orders: " in told
    assert first["propagation"]["outcome"] == "Succeeded"
    assert desk.kept() == [1, 2, 3, 4, 5, 6]

    def allowed() -> bool:
        code, (found,), _ = desk.run("--dry-run")
        return (code, found["compaction"]["reason"]) == (0, "DryRun")

    eventually(allowed, "a cut that is allowed")
    assert desk.kept() == [1, 2, 3, 4, 5, 6]
    shows_what_another_file_would_do(desk)
    code, (found,), told = desk.run()
    assert (code, told.count("Compacted")) == (0, 1)
    assert (found["earliestVersion"], found["latestVersion"], found["versionsCut"]) == (5, 6, 4)
    assert found["bytesCut"] > 0
    assert desk.kept() == [5, 6]
    code, (found,), _ = desk.run()
    assert (code, found["compaction"]["reason"]) == (0, "NothingToCompact")
    desk.act("finish", timestamp=transaction)


def shows_what_another_file_would_do(desk: Desk) -> None:
    document = desk.catalog()
    document["spec"]["topology"] = {"participants": ["nowhere"]}
    new = desk.directory / "new.yaml"
    new.write_text(yaml.safe_dump(document))
    place = ("--against", str(desk.file))
    desk.capsys.readouterr()
    assert exit_code(["run", "-f", str(new), "--dry-run", *place, "-o", "json"]) == 0
    (found,) = json.loads(desk.capsys.readouterr().out)
    assert (found["catalog"], found["inForce"]["reason"], found["inForce"]["versions"]) == ("orders", "Compacted", 4)
    assert found["inForce"]["bytes"] > 0
    assert (found["proposed"]["reason"], found["proposed"]["participant"]) == ("MissingParticipant", "nowhere")
    assert desk.kept() == [1, 2, 3, 4, 5, 6]
    document["spec"]["catalog"]["prefix"] = "/elsewhere/"
    new.write_text(yaml.safe_dump(document))
    assert exit_code(["run", "-f", str(new), "--dry-run", *place]) == 1
    assert "spec.catalog.prefix" in desk.capsys.readouterr().err


def test_a_transaction_pins_the_history_and_is_named(desk: Desk) -> None:
    desk.act("set-clock", milliseconds=0)
    desk.run()
    place, ddl = desk.place, desk.directory / "more.yaml"
    transaction = desk.act("begin")["timestamp"]
    names = [f"- {{type: RENAME_TABLE, schema: PUBLIC, table: T{n}, newName: T{n + 1}}}" for n in range(3, 7)]
    ddl.write_text("\n".join(names))
    assert main(["catalogs", "apply", str(ddl), *place, "--delay", "1", "--max-skew", "0"]) == 0
    rows = shown(desk.capsys, "catalogs", "list", *place)[1]
    for row in rows:
        if row["version"] > 6:
            desk.act("add-version", version=row["version"], activation=str(row["activationTime"]))

    def pinned() -> bool:
        found = desk.run()[1][0]
        return (found["earliestVersion"], found["compaction"]["reason"]) == (5, "Transaction")

    eventually(pinned, "a history that a transaction pins")
    found = desk.run()[1][0]
    assert (found["pin"]["participant"], found["pin"]["subject"]) == ("node1", f"transaction {transaction}")
    assert desk.kept() == [5, 6, 7, 8, 9, 10]
    desk.act("finish", timestamp=transaction)
    eventually(lambda: desk.run()[1][0]["earliestVersion"] == 9, "the rest of the cut")
    assert desk.kept() == [9, 10]


def test_a_watch_makes_rounds_takes_changes_and_ends_in_order(desk: Desk) -> None:
    desk.write(suspend=True)
    words = [sys.executable, "-m", "compaction.cli.main", "run", "-f", str(desk.file), "--watch", "-o", "json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            desk.write()
            told = ""
            for line in running.stderr:
                told += line
                if "Compacted" in line:
                    break
            os.kill(running.pid, signal.SIGTERM)
            out, _ = running.communicate(timeout=PATIENCE_SECONDS)
        finally:
            if running.poll() is None:
                running.kill()
    assert running.returncode == 0, told
    (found,) = json.loads(out)
    assert (found["earliestVersion"], found["versionsCut"]) == (5, 4)
    assert desk.kept() == [5, 6]


def test_a_suspended_catalog_has_no_round(desk: Desk) -> None:
    desk.write(suspend=True)
    code, (found,), told = desk.run()
    assert (code, told, found["compaction"], found["propagation"]) == (0, "", None, None)


def test_several_catalogs_have_a_round_each_and_one_can_be_chosen(desk: Desk) -> None:
    desk.write(desk.catalog("again"))
    _, found, _ = desk.run()
    assert [item["catalog"] for item in found] == ["orders", "again"]
    _, found, _ = desk.run("--catalog", "again")
    assert [item["catalog"] for item in found] == ["again"]
    code, _, told = desk.run("--catalog", "lost")
    assert (code, "there are orders, again" in told) == (2, True)


def test_a_round_fences_the_coordinator_before_it(desk: Desk) -> None:
    log = EtcdUpdateLog(GatewayClient(EtcdSettings.of(desk.place[1])), desk.place[3])
    with closing(log):
        token = log.claim(7)
        assert token == 7
        eventually(lambda: desk.run()[1][0]["earliestVersion"] == 5, "the cut of a run")
        kept = history_of(log.recover().events)
        found = kept.find(6)
        assert found is not None
        assert log.save_snapshot(found.snapshot(), token) is SnapshotOutcome.FENCED
    assert desk.kept() == [5, 6]


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        (
            {"participants": {"selector": {"matchLabels": {"app": "o"}, "port": 1}, "token": {"secretName": "s"}}},
            "spec.participants.selector: labels of pods need a cluster: name each participant with its address under "
            "spec.participants.urls",
        ),
        (
            {"participants": {"urls": [{"name": "a", "url": "http://127.0.0.1:9"}], "serviceAccountToken": {}}},
            "spec.participants.serviceAccountToken: an account needs a cluster",
        ),
        ({"intervall": "1s"}, "did you mean interval?"),
        ({"maxClockSkew": "soon"}, "write a duration such as 30s"),
    ],
)
def test_what_a_machine_alone_cannot_do_is_refused(
    spec: dict[str, Any], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text(yaml.safe_dump(catalog_object(**spec)))
    code, _, told = shown(capsys, "run", "-f", file)
    assert (code, advice in " ".join(told.split())) == (2, True), told


def test_a_missing_secret_and_a_missing_etcd_are_named(desk: Desk) -> None:
    desk.write(secret=False)
    code, (found,), told = desk.run()
    assert (code, found["compaction"]["reason"]) == (1, "SecretMissing")
    assert "participants" in told
    assert SECRET not in told
    folder = desk.directory / "secrets" / "participants"
    folder.mkdir(parents=True)
    (folder / "token").write_text(SECRET + "\n")
    assert desk.run("--secrets-dir", str(folder.parent))[1][0]["participants"][0]["reason"] == "Answered"
    desk.write(catalog={"endpoints": ["http://127.0.0.1:9"], "prefix": "/x"}, timeouts={"log": "500ms"})
    code, (found,), told = desk.run()
    assert (code, found["compaction"]["reason"]) == (1, "LogUnavailable")
    assert "127.0.0.1:9" in told


def with_policy(desk: Desk) -> None:
    """The file has a policy too, whose logs are all compact."""
    logs = desk.directory / "logs"
    logs.mkdir()
    policy = {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": "logs"},
        "spec": {"store": {"segmentLogs": {"root": str(logs)}}},
    }
    desk.write(policy)


def test_policies_and_catalogs_of_one_file_are_both_run(desk: Desk) -> None:
    with_policy(desk)
    shown_of = desk.capsys
    shown_of.readouterr()
    exit_code(["run", "-f", str(desk.file), "--dry-run"])
    both = shown_of.readouterr().out
    assert exit_code(["run", "-f", str(desk.file), "--dry-run", "--policy", "logs"]) == 0
    policy = shown_of.readouterr().out
    exit_code(["run", "-f", str(desk.file), "--dry-run", "--catalog", "orders"])
    catalog = shown_of.readouterr().out
    assert policy in both
    assert ("History:" in policy, "History:" in catalog, "History:" in both) == (False, True, True)
    assert policy not in catalog


def test_both_are_watched_side_by_side(desk: Desk) -> None:
    with_policy(desk)
    words = [sys.executable, "-m", "compaction.cli.main", "run", "-f", str(desk.file), "--watch"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            told = ""
            for line in running.stderr:
                told += line
                if "Compacted" in line:
                    break
            os.kill(running.pid, signal.SIGTERM)
            out, _ = running.communicate(timeout=PATIENCE_SECONDS)
        finally:
            if running.poll() is None:
                running.kill()
    assert running.returncode == 0, told
    assert "Policy:" in out
    assert "versions 5 to 6" in out


def test_of_a_cluster_of_etcd_any_member_is_used(desk: Desk, etcd: Members) -> None:
    dead = "http://127.0.0.1:9"
    desk.write(catalog={"endpoints": [dead, desk.place[1]], "prefix": desk.place[3]})
    assert desk.run()[1][0]["latestVersion"] == 6
    assert str(etcd.members[0].endpoint) == desk.place[1]
