"""`compactor catalogs debug replay`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.codec import canonical
from compaction.catalogs.replay.replaying import replay
from compaction.cli.main import main

SEEDS = [11, 14]
Records = list[Any]


def path_of(shared_fixtures: Path, seed: int) -> Path:
    return shared_fixtures / "ignite-replay" / f"head_seed{seed}.jsonl.gz"


@pytest.mark.fixtures
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_the_reference_is_ours(
    shared_fixtures: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["catalogs", "debug", "replay", str(path_of(shared_fixtures, seed))]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "305 steps, 0 differences\n"


@pytest.fixture(scope="module")
def records(shared_fixtures: Path) -> Records:
    with gzip.open(path_of(shared_fixtures, 14), "rt") as file:
        return [json.loads(line) for line in file]


def copied(records: Records) -> Records:
    copy: Records = json.loads(json.dumps(records))
    return copy


def written(path: Path, records: Records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def find(records: Records, test: Callable[[Any], object]) -> Any:
    return next(record for record in records if test(record))


def executed(record: Any) -> bool:
    """A batch that became a version."""
    return record["in"]["op"] == "exec" and "catalogSha256" in record and len(record.get("events", [])) > 1


def interleaved(record: Any) -> bool:
    return record["in"]["op"] == "interleave" and "error" not in record["result"]


def compacted(record: Any) -> bool:
    return record["in"]["op"] == "compact" and record["result"] is True


def refused(record: Any) -> bool:
    return record["in"]["op"] == "exec" and "error" in (record.get("result") or {})


def operation(name: str) -> Callable[[Any], bool]:
    return lambda record: record["in"]["op"] == name


def changed(path: str, value: Any) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in parents:
            record = record[key]
        record[last] = value(record[last]) if callable(value) else value

    return change


def dropped(name: str) -> Callable[[Any], None]:
    return lambda record: record.pop(name)


def plus_one(number: int) -> int:
    return number + 1


ALTERED: list[tuple[Callable[[Any], Any], Callable[[Any], None], str]] = [
    (executed, changed("result.version", plus_one), "exec: result.version: the history has"),
    (executed, changed("result.time", plus_one), "exec: result.time"),
    (executed, changed("result.applied.0", False), "exec: result.applied.0: the history has false, this catalog true"),
    (executed, changed("catalogSha256", "00"), "exec: catalogSha256"),
    (executed, changed("catalog.objectIdGen", plus_one), "exec: catalog.objectIdGen"),
    (executed, changed("earliest", plus_one), "exec: earliest"),
    (executed, changed("latest", plus_one), "exec: latest"),
    (executed, changed("events.0.event", "ZONE_ALTER"), "exec: events.0.event"),
    (executed, changed("events.1.causalityToken", plus_one), "exec: events.1.causalityToken"),
    (executed, dropped("events"), "exec: events: the history has nothing"),
    (executed, dropped("catalog"), "exec: catalog: the history has nothing"),
    (executed, changed("decoded.0.version", plus_one), "exec: decoded.0.version"),
    (executed, changed("txns.0.revision", plus_one), "exec: txns.0.revision"),
    (executed, changed("txns.0.timestamp", 7), "exec: txns.0.timestamp: the history has 7"),
    (executed, changed("txns.0.timestamp", plus_one), "exec: catalogSha256"),
    (executed, changed("txns.0.succeeded", False), "exec: txns.0.succeeded: the history has false"),
    (executed, changed("txns.0.puts.0.1", lambda data: data[:-2]), "exec: txns.0.puts.catalog.update."),
    (executed, changed("txns.0.puts.0.0", "catalog.update.999"), "txns.0.puts.catalog.update.999"),
    (executed, changed("txns", []), "exec: txns.0: the history has nothing"),
    (executed, changed("in.cmds", []), "exec: result: the history has {"),
    (executed, changed("in.cmds.0.table", "OTHER"), "exec: catalog.schemas.0.tables.0.name: the history has"),
    (refused, changed("result.error.class", "IOException"), 'exec: result.error: the history has "IOException"'),
    (refused, changed("result", None), "exec: result: the history has null"),
    (compacted, changed("result", False), "compact: result: the history has false, this catalog true"),
    (compacted, changed("txns.0.removes", lambda keys: keys[1:]), "compact: txns.0.removes.0"),
    (compacted, changed("in.version", 2), "compact: "),
    (operation("activeAt"), changed("result", 99), "activeAt: result: the history has 99"),
    (operation("versions"), changed("result.0.2", "00"), "versions: result.0.2"),
    (operation("restart"), changed("result", []), "restart: result.0: the history has nothing"),
    (operation("keys"), changed("result.1.2", plus_one), "keys: result.1.2"),
    (operation("keys"), changed("result.2.1", "00"), "keys: result.2.1"),
    (operation("config"), changed("in.delayMs", 2), "config: "),
    (interleaved, changed("firstResult", {"applied": [True]}), "interleave: firstResult"),
]


@pytest.mark.fixtures
@pytest.mark.parametrize("number", range(len(ALTERED)), ids=lambda number: ALTERED[number][2])
def test_an_altered_history_is_reported(
    records: Records, number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    which, change, line = ALTERED[number]
    altered = copied(records)
    target = find(altered, which)
    position = altered.index(target) + 1
    change(target)
    # What follows the altered step says nothing more: a few steps after it do.
    steps = altered[: position + 2]
    code = main(["catalogs", "debug", "replay", str(written(tmp_path / "altered.jsonl", steps))])
    output = capsys.readouterr()
    assert code == 1 or line == "config: ", output.err
    if line == "config: ":
        code = main(["catalogs", "debug", "replay", str(written(tmp_path / "altered.jsonl", altered[:40]))])
        output = capsys.readouterr()
        assert code == 1
        line = "decoded.0.delayDurationMs"
    assert any(line in found for found in output.out.splitlines()), output.out[:2000]
    assert "Traceback" not in output.err


@pytest.mark.fixtures
def test_a_step_that_is_left_out_is_reported(records: Records, tmp_path: Path) -> None:
    altered = copied(records)
    altered.remove(find(altered, executed))
    reports = list(replay(written(tmp_path / "altered.jsonl", altered[:60])))
    assert sum(bool(report.differences) for report in reports) > 5
    assert len(reports) == 60


@pytest.mark.fixtures
def test_many_differences_of_a_value_are_counted(records: Records, tmp_path: Path) -> None:
    altered = copied(records)
    find(altered, operation("versions"))["result"] = []
    (last,) = [report for report in replay(written(tmp_path / "a.jsonl", altered)) if report.differences]
    assert len(last.differences) == 21
    assert str(last.differences[-1]).startswith("result and 36 more: the history has nothing, this catalog [")


FIRST = '{"in":{"op":"config","delayMs":1},"earliest":0,"latest":1,"txns":[]}'


@pytest.mark.fixtures
@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "the file is empty"),
        ("not json", 1, "JSONDecodeError"),
        ("[]", 1, "TypeError"),
        ('{"in":{"op":"exec","cmds":[]},"earliest":0,"latest":1,"txns":[]}', 1, "the first line, and no other one"),
        (FIRST + "\n" + FIRST, 2, "the first line, and no other one"),
        (FIRST + "\n" + FIRST.replace("config", "fly"), 2, "unknown operation 'fly'"),
        (FIRST + "\n\n", 2, "JSONDecodeError"),
        (FIRST.replace("1}", "-1}"), 1, "-1 is no integer from 0"),
        (FIRST.replace('"latest":1', '"latest":"1"'), 1, "1 is no integer"),
        (FIRST.replace('"latest":1,', ""), 1, "KeyError: 'latest'"),
        (FIRST.replace("[]", '[{"puts":[["k","zz"]]}]'), 1, "ValueError"),
        (
            FIRST.replace("[]", '[{"puts":[],"removes":[],"revision":1,"succeeded":true,"timestamp":0}]'),
            1,
            "0 is no integer from 1",
        ),
        (FIRST + "\n" + FIRST.replace('"config"', '"exec","cmds":[{"type":"FLY"}]'), 2, "KeyError: 'FLY'"),
        ("[" * 100_000, 1, "RecursionError"),
    ],
)
def test_a_file_that_is_no_history_is_named(
    text: str, line: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_text(text)
    assert main(["catalogs", "debug", "replay", str(file)]) == 1
    error = capsys.readouterr().err
    assert f"{file}: line {line} is no step of a history: " in error
    assert reason in error


@pytest.mark.fixtures
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:2000] + b"\xff" * 100])
def test_a_damaged_archive_is_named(
    shared_fixtures: Path, damage: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cut.jsonl.gz"
    file.write_bytes(damage(path_of(shared_fixtures, 14).read_bytes()))
    assert main(["catalogs", "debug", "replay", str(file)]) == 1
    assert "cut.jsonl.gz: line" in capsys.readouterr().err
    assert main(["catalogs", "debug", "replay", str(tmp_path / "absent")]) == 1
    assert "absent: No such file" in capsys.readouterr().err


# `compactor catalogs debug decode`.

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
