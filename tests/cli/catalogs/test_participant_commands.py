"""`compactor catalogs serve` as a process, and `compactor catalogs debug conformance` against it and what is broken."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.serving.server import ParticipantServer
from compaction.cli.main import main
from support.catalogs.endpoints import answer, raw_server, says
from support.stores.ingest import SECRET, Endpoint
from support.stores.ingest_process import serving_process
from support.time.waiting import eventually


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return file


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
