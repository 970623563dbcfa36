"""`compactor catalogs debug decode`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.codec import canonical
from compaction.cli.main import main

DROPS = "02001100030265030500039d9d83e9010500039e9d83e901"
"""Two tables dropped: protocol 2, version 1, delay 100."""


def run(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, list[Any], list[str]]:
    """Exit code, lines of JSON, lines of stderr."""
    code = main(["catalogs", "debug", "decode", *map(str, args)])
    output = capsys.readouterr()
    return code, [json.loads(line) for line in output.out.splitlines()], output.err.splitlines()


@pytest.fixture
def drops(tmp_path: Path) -> Path:
    file = tmp_path / "drops.bin"
    file.write_bytes(bytes.fromhex(DROPS))
    return file


def test_a_value_is_a_line_of_canonical_json(drops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogs", "debug", "decode", str(drops), "-o", "jsonl", "--reencode"]) == 0
    output = capsys.readouterr()
    row = {
        "file": str(drops),
        "protocol": 2,
        "reencoded": DROPS,
        "value": {
            "@type": "VERSIONED_UPDATE",
            "delayDurationMs": 100,
            "entries": [
                {"@type": "DROP_TABLE", "tableId": 488689308},
                {"@type": "DROP_TABLE", "tableId": 488689309},
            ],
            "version": 1,
        },
    }
    assert output.out == canonical.text(row) + "\n"
    assert output.err == ""


def test_refused_values_are_named_and_the_others_shown(drops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "longer.bin": bytes.fromhex(DROPS) + b"\0",
        "shorter.bin": bytes.fromhex(DROPS)[:-1],
        "empty.bin": b"",
        "newer.bin": b"\3" + bytes.fromhex(DROPS)[1:],
        "type.bin": bytes.fromhex("0200630003"),
    }
    for name, data in wrong.items():
        (drops.parent / name).write_bytes(data)
    code, rows, errors = run(capsys, *(drops.parent / name for name in wrong), drops, drops.parent / "absent.bin")
    assert code == 1
    assert [row["file"] for row in rows] == [str(drops)]
    assert len(errors) == len(wrong) + 1
    for name, line in zip([*wrong, "absent.bin"], errors, strict=True):
        assert name in line
    assert "1 bytes follow the value" in errors[0]
    assert "protocol" in errors[3]


def test_other_forms(drops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogs", "debug", "decode", str(drops), "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["value"]["version"] == 1
    assert main(["catalogs", "debug", "decode"]) == 2
    assert "FILE..." in capsys.readouterr().err


def test_a_file_without_an_end_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.catalogs.cli.versions.LARGEST", 1000)
    code, rows, errors = run(capsys, "/dev/zero")
    assert (code, rows) == (1, [])
    assert "/dev/zero: larger than 1000 bytes" in errors[0]


@pytest.mark.fixtures
def test_every_reference_file(
    shared_fixtures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values are those that the reference reads; it cannot encode those of old indexes again, nor can ours."""
    monkeypatch.chdir(shared_fixtures / "ignite")
    with gzip.open("reader_head.jsonl.gz", "rt") as file:
        records = [json.loads(line) for line in file]
    code, rows, errors = run(capsys, *(record["file"] for record in records), "--reencode")
    assert [(row["file"], row["protocol"], row["value"]) for row in rows] == [
        (record["file"], record["protocol"], record["value"]) for record in records
    ]
    unwritable = [record["file"] for record in records if "reencodeError" in record]
    assert [row["file"] for row in rows if row["reencoded"] is None] == unwritable
    assert (code, len(errors)) == (1, len(unwritable))
    for row, record in zip(rows, records, strict=True):
        if row["reencoded"] is not None:
            assert len(row["reencoded"]) // 2 == record["reencodeLatestBytes"]
            same = bytes.fromhex(row["reencoded"]) == Path(row["file"]).read_bytes()
            assert same == record["reencodeLatestEqual"]
