"""`compactor staging debug exec`: one result for each operation, in order, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.cli.values import raw_value
from staging.cli.test_maintenance import objects
from support.staging.staging_repos import StagingCommands, in_folder


def main(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "branch": "main", **fields}


EVERYTHING = (
    {"op": "create_repo", "repo": "second", "namespace": "memory", "default_branch": "main"},
    main("set", key="a", value="1"),
    main("set", key_base64="//4=", value_base64="//4="),
    main("set", key="e", entry={"address": "s3://x/y", "size": 1, "eTag": "e"}),
    main("set", key="i", value="other", identity="c0ffee"),
    main("set_if", key="a", value="2", if_value="1"),
    main("set_if", key="a", value="3", if_absent=True),
    main("set_many", values={"p/1": "x", "p/2": "y"}),
    main("set_many", records=[{"key": "q", "value": "z"}]),
    main("commit", message="first", committer="me", metadata={"a": "b"}),
    main("create_branch", source="main") | {"branch": "etl"},
    main("delete", key="a"),
    main("delete_many", keys=["p/1", "nope"], keys_base64=["//4="]) | {"keys": ["p/1"]},
    {"op": "get", "ref": "main", "key": "a"},
    {"op": "get", "ref": "main", "key": "q", "stage_only": True},
    {"op": "list", "ref": "main", "delimiter": "/", "amount": 3},
    main("diff_uncommitted", prefix="p/"),
    {"op": "diff", "left": "main", "right": "main$"},
    main("seal"),
    main("inspect"),
    main("compact"),
    main("compact"),
    main("reset_key", key="a"),
    main("reset_prefix", prefix="p/"),
    main("diff_uncommitted"),
    main("reset"),
    main("import", values={"n/1": "1"}, prefixes=["p/"]),
    {"op": "merge", "source": "main", "into": "etl"},
    {"op": "cherry_pick", "branch": "main", "ref": "etl~1"},
    main("revert", ref="main"),
    main("hard_reset", ref="main~1"),
    {"op": "create_tag", "tag": "v1", "ref": "main"},
    {"op": "list_tags"},
    {"op": "delete_tag", "tag": "v1"},
    {"op": "list_branches"},
    {"op": "log", "ref": "main", "amount": 2},
    {"op": "delete_branch", "branch": "etl"},
    {"op": "sweep", "grace": 0},
    {"op": "verify"},
)


def test_each_operation_has_a_result_and_the_same_history_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcomes = []
    for name in ("one", "two"):
        staging = in_folder(tmp_path / name)
        operations = [
            item | ({"namespace": str(tmp_path / name / "second")} if "namespace" in item else {"repo": "second"})
            for item in EVERYTHING
        ]
        results = staging.exec(operations, "--clock", "1700000000")
        assert [result["line"] for result in results] == list(range(1, len(EVERYTHING) + 1))
        assert [result["op"] for result in results] == [item["op"] for item in EVERYTHING]
        outcomes.append(results)
    assert outcomes[0] == outcomes[1]
    failed = {(outcome["op"], outcome["error"]) for outcome in outcomes[0] if not outcome["ok"]}
    assert failed == {("set_if", "ConditionFailedError")}
    by_line = dict(enumerate(outcomes[0], 1))
    assert by_line[14] == {"line": 14, "op": "get", "ok": True, "found": False}
    assert by_line[21]["compacted"] is True
    assert by_line[22] == {"line": 22, "op": "compact", "ok": True, "compacted": False}
    assert [item["key_base64"] for item in by_line[25]["entries"]] == ["//4="]
    assert by_line[39]["problems"] == []


def test_keys_and_values_that_are_no_text_are_in_base64(staging: StagingCommands) -> None:
    results = staging.exec(
        [
            main("set", key_base64="//4=", value_base64="gA=="),
            main("set", key="e", entry={"address": "s3://x/y", "size": 1, "eTag": "e"}),
            {"op": "list", "ref": "main"},
        ]
    )
    entry, data = results[2]["entries"]
    assert entry["entry"]["address"] == "s3://x/y"
    assert (data["key_base64"], data["value_base64"]) == ("//4=", "gA==")


def test_an_error_ends_a_history_only_when_it_should(staging: StagingCommands) -> None:
    history = [main("set", key="a", value="1"), main("set", key="", value="1"), main("set", key="b", value="1")]
    one, two, three = staging.exec(history)
    assert (one["ok"], two["ok"], three["ok"]) == (True, False, True)
    assert two["error"] == "KeyValueArgumentError"
    assert len(staging.exec(history, "--stop-on-error", code=1)) == 2
    large = main("delete_many", keys=[str(number) for number in range(1001)])
    assert staging.exec([large])[0]["error"] == "InvalidBatchError"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("not json", "the line is not JSON"),
        ('["set"]', "the line is no JSON object"),
        ('{"op": "sett"}', "which is no operation: write one of create_repo, create_branch"),
        ('{"branch": "main"}', '"op" is None'),
        ('{"op": "set", "branch": "main", "key": "a"}', 'operation set needs "value", a text'),
        ('{"op": "set", "branch": 1, "key": "a", "value": ""}', 'operation set needs "branch", a text'),
        ('{"op": "set", "branch": "main", "key": "a", "value": "", "if": 1}', 'operation set has no field "if"'),
        ('{"op": "set", "branch": "main", "key": "a", "key_base64": "YQ==", "value": ""}', 'has "key" twice'),
        ('{"op": "set", "branch": "main", "key": "\\ud800", "value": ""}', "is not Unicode text"),
        ('{"op": "set_if", "branch": "main", "key": "a", "value": ""}', 'needs one of "if_absent": true'),
        ('{"op": "list", "ref": "main", "amount": "3"}', '"amount" of operation list is a whole number'),
        ('{"op": "commit", "branch": "main", "metadata": {"a": 1}}', '"metadata" of operation commit'),
        ('{"op": "commit", "branch": "main", "allow_empty": 1}', '"allow_empty" of operation commit is true or false'),
        ('{"op": "merge", "source": "a", "into": "b", "strategy": "x"}', "none, source-wins, dest-wins"),
        (
            '{"op": "set_many", "branch": "main", "records": [1]}',
            '"records" of operation set_many is a list of objects',
        ),
        ('{"op": "set_many", "branch": "main", "records": [{"kye": "a"}]}', 'a record has no field "kye"'),
        ('{"op": "sweep", "grace": "1h"}', '"grace" of operation sweep is a number of seconds'),
    ],
)
def test_a_line_that_is_no_operation_ends_the_history_before_it(staging: StagingCommands, raw: str, words: str) -> None:
    first = json.dumps(main("set", key="z", value="1"))
    result = staging.run("debug", "exec", "-", input=f"{first}\n\n{raw}\n{first}\n")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: standard input: line 3: ")
    assert words in line
    assert staging.keys() == ["z"]


def test_a_store_that_is_gone_is_an_error_of_each_operation(staging: StagingCommands, tmp_path: Path) -> None:
    staging.environment = {"COMPACTION_KV_URL": f"sqlite:///{tmp_path}/none/kv.db"}
    result = staging.run("debug", "exec", "-", input='{"op": "get", "repo": "example", "ref": "main", "key": "a"}\n')
    assert json.loads(result.stdout)["error"] == "NoStagingAreaError"
    assert not (tmp_path / "none").exists()
    assert staging.run("debug", "exec", "-", input='{"op": "get", "ref": "main", "key": "a"}\n').exit_code == 2
    (tmp_path / "kv.db").write_text("no database")
    staging.environment = {"COMPACTION_KV_URL": f"sqlite:///{tmp_path}/kv.db", "COMPACTION_REPOSITORY": "example"}
    result = staging.run("debug", "exec", "-", input='{"op": "get", "ref": "main", "key": "a"}\n')
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (1, False)
    assert "No such file" in staging.fails("debug", "exec", tmp_path / "none")


def test_what_was_acknowledged_is_there_after_a_kill(staging: StagingCommands) -> None:
    command = [sys.executable, "-m", "compaction.cli.main", "staging", "debug", "exec", "-"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | staging.environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(20):
        process.stdin.write(json.dumps(main("set", key=f"{number:02}", value="1")) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["line"] == number + 1, "each result is flushed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert staging.keys() == [f"{number:02}" for number in range(20)]
    assert staging.data("verify")["problems"] == []


KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "c"])
OPERATIONS = st.one_of(
    st.builds(lambda key, value: main("set", key=key, value=value), KEYS, st.sampled_from("xyz")),
    st.builds(lambda key: main("delete", key=key), KEYS),
    st.sampled_from([main("seal"), main("compact"), main("commit"), main("reset"), {"op": "sweep", "grace": 0}]),
    st.sampled_from([main("reset_prefix", prefix="a/"), main("reset_key", key="b")]),
)


@settings(deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
def test_a_history_shows_what_a_model_says(
    tmp_path_factory: pytest.TempPathFactory, history: list[dict[str, Any]]
) -> None:
    staging = in_folder(tmp_path_factory.mktemp("model"))
    shown: dict[str, str] = {}
    committed: dict[str, str] = {}
    expected = []
    for item in history:
        match item["op"]:
            case "set":
                shown[item["key"]] = item["value"]
            case "delete":
                shown.pop(item["key"], None)
            case "commit":
                committed = dict(shown)
            case "reset":
                shown = dict(committed)
            case "reset_prefix" | "reset_key":
                prefix = item["prefix" if "prefix" in item else "key"]
                shown = {key: value for key, value in shown.items() if not key.startswith(prefix)}
                shown |= {key: value for key, value in committed.items() if key.startswith(prefix)}
        expected.append(sorted(shown.items()))
    listing = {"op": "list", "ref": "main"}
    results = staging.exec([item for operation in history for item in (operation, listing)])
    found = [[(entry["key"], entry["value"]) for entry in result["entries"]] for result in results[1::2]]
    assert found == expected


# `compactor staging debug sst`: ranges and metaranges as lines of JSON, and back.


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


def line(key: bytes, value: bytes = b"v", **more: Any) -> str:
    return json.dumps({"key": encoded(key), "value": encoded(value), **more}) + "\n"


def written(staging: StagingCommands, tmp_path: Path, text: str | bytes, kind: str = "ranges") -> Path:
    target = tmp_path / "out.sst"
    staging.does("debug", "sst", "-", "--write", target, "--type", kind, input=text)
    return target


def read(staging: StagingCommands, file: Path) -> list[Any]:
    return [json.loads(item) for item in staging.does("debug", "sst", file).splitlines()]


@pytest.mark.fixtures
@pytest.mark.parametrize(("name", "kind"), [("range", "ranges"), ("metarange", "metaranges")])
def test_files_of_lakefs_are_written_again_byte_for_byte(
    staging: StagingCommands, shared_fixtures: Path, tmp_path: Path, name: str, kind: str
) -> None:
    source = shared_fixtures / "lakefs" / f"{name}.sst"
    lines = staging.does("debug", "sst", source, "-o", "jsonl")
    assert written(staging, tmp_path, lines, kind).read_bytes() == source.read_bytes()
    first = json.loads(lines.splitlines()[0])
    assert set(first) == {"key", "value", "identity", "data", "entry" if kind == "ranges" else "range"}
    properties = staging.data("debug", "sst", source, "--properties")
    assert properties["type"] == properties["properties"]["type"] == kind
    assert properties["records"] == len(lines.splitlines())


@pytest.mark.fixtures
def test_a_file_whose_properties_are_another_writers_needs_them(
    staging: StagingCommands, shared_fixtures: Path, tmp_path: Path
) -> None:
    """This one, of January 2021, says another first key than it has."""
    source = shared_fixtures / "lakefs" / "ok1.sst"
    lines = staging.does("debug", "sst", source)
    assert written(staging, tmp_path, lines).read_bytes() != source.read_bytes()
    properties = tmp_path / "properties.json"
    properties.write_text(staging.does("debug", "sst", source, "--properties", "-o", "json"))
    assert json.loads(properties.read_text())["properties"]["min_keyBase64"] == "K0CzbKg="
    more = ("--with-properties", properties)
    staging.does("debug", "sst", "-", "--write", tmp_path / "again.sst", "--type", "ranges", *more, input=lines)
    assert (tmp_path / "again.sst").read_bytes() == source.read_bytes()
    properties.write_text("{}")
    assert 'it has no "properties"' in staging.fails(
        "debug", "sst", "-", "--write", tmp_path / "again.sst", "--type", "ranges", *more, input=lines
    )


@pytest.mark.fixtures
def test_the_id_is_printed_and_foreign_tables_are_refused(
    staging: StagingCommands, shared_fixtures: Path, tmp_path: Path
) -> None:
    (listed,) = read(staging, shared_fixtures / "lakefs" / "metarange.sst")
    lines = staging.does("debug", "sst", shared_fixtures / "lakefs" / "range.sst")
    target = tmp_path / "again.sst"
    assert (
        staging.does("debug", "sst", "-", "--write", target, "--type", "ranges", input=lines)
        == f"{listed['range']['id']}\n"
    )
    assert "deletions of ranges" in staging.fails("debug", "sst", shared_fixtures / "lakefs" / "h.sst")


def test_tables_of_a_store_are_written_again_byte_for_byte(tmp_path: Path) -> None:
    staging = in_folder(tmp_path / "store")
    values = {f"k/{number:05}": f"value {number}" for number in range(20_000)}
    staging.exec([{"op": "set_many", "branch": "main", "values": values}, {"op": "commit", "branch": "main"}])
    files = objects(staging)
    assert len(files) >= 2
    for file in files:
        kind = staging.data("debug", "sst", file, "--properties")["type"]
        again = written(staging, tmp_path, staging.does("debug", "sst", file), kind)
        assert again.read_bytes() == file.read_bytes()
        assert staging.data("debug", "sst", again, "--properties")["id"] == file.name


@given(st.dictionaries(st.binary(min_size=1, max_size=40), st.binary(max_size=100), max_size=50))
def test_any_records_come_back(tmp_path_factory: pytest.TempPathFactory, records: dict[bytes, bytes]) -> None:
    folder = tmp_path_factory.mktemp("records")
    staging = StagingCommands.__new__(StagingCommands)
    staging.environment = {}
    pairs = sorted(records.items())
    target = written(staging, folder, "".join(line(key, value) for key, value in pairs))
    assert [(b64decode(item["key"]), b64decode(item["value"])) for item in read(staging, target)] == pairs


def test_a_value_may_be_written_as_its_parts_or_as_an_entry(staging: StagingCommands, tmp_path: Path) -> None:
    value = raw_value(b"data", b"identity")
    parts = json.dumps({"key": encoded(b"a"), "identity": encoded(b"identity"), "data": encoded(b"data")}) + "\n"
    entry = {"address": "x/y", "size": 3, "eTag": "e", "metadata": {"a": "b"}, "lastModified": "2026-11-21T10:30:00.5Z"}
    text = parts + json.dumps({"key": encoded(b"b"), "entry": entry}) + "\n"
    one, two = read(staging, written(staging, tmp_path, text))
    assert one["value"] == encoded(value)
    assert two["entry"] == {**entry, "addressType": "relative", "contentType": ""}


@pytest.mark.parametrize(
    ("text", "number", "words"),
    [
        (line(b"b") + line(b"a"), 2, "the key 'a' is not greater than 'b' before it"),
        (line(b"a") + "\n" + line(b"a"), 3, "the key 'a' is there twice"),
        (line(b"a") + "{", 2, "the line is not JSON"),
        ("[]\n", 1, "the line is no JSON object"),
        ('{"key": "YQ=="}\n', 1, 'a record needs "value", or "identity" and "data", or "entry"'),
        ('{"value": "YQ=="}\n', 1, 'a record needs "key"'),
        ('{"key": "YQ==", "value": "%"}\n', 1, '"value" is not base64'),
        ('{"key": 1, "value": ""}\n', 1, '"key" is not a text'),
        (line(b"a", vlaue=1), 1, 'a record has no "vlaue"'),
        ('{"key": "YQ==", "key": "YQ==", "value": ""}\n', 1, "names a field twice"),
        ('{"key": "YQ==", "entry": {"address": "x", "size": "1"}}\n', 1, '"size" of an entry'),
        ('{"key": "YQ==", "entry": {"address": "x", "lastModified": "today"}}\n', 1, '"lastModified" of an entry'),
        ('{"key": "YQ==", "entry": {"address": "x", "adressType": 1}}\n', 1, 'an entry has no "adressType"'),
        (line(b"k" * 70_000), 1, '"key" has 70000 bytes, more than 65536'),
        ("[" * 100_000 + "\n", 1, "the line is not JSON"),
        (b"\xff\xfe\n", 1, "the line is not JSON"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(
    staging: StagingCommands, tmp_path: Path, text: str | bytes, number: int, words: str
) -> None:
    target = tmp_path / "out.sst"
    target.write_text("as before")
    error = staging.fails("debug", "sst", "-", "--write", target, "--type", "ranges", input=text)
    assert error.startswith(f"error: standard input: line {number}: ")
    assert words in error
    assert target.read_text() == "as before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.sst", "store"]


def test_damaged_and_foreign_files_are_named(staging: StagingCommands, tmp_path: Path) -> None:
    whole = written(staging, tmp_path, line(b"a", raw_value(b"x"))).read_bytes()
    file = tmp_path / "damaged.sst"
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        assert str(file) in staging.fails("debug", "sst", file)
    file.write_bytes(b"PAR1" + whole + b"PAR1")
    assert "no table, or its end is missing" in staging.fails("debug", "sst", file)
    assert (
        staging.fails("debug", "sst", tmp_path / "none.sst") == f"error: {tmp_path}/none.sst: No such file or directory"
    )
    assert staging.run("debug", "sst", tmp_path).exit_code == 2
    assert staging.run("debug", "sst", "-", "--write", file, "--type", "other").exit_code == 2
    assert "No such file" in staging.fails(
        "debug", "sst", file, "--write", tmp_path / "no" / "x.sst", "--type", "ranges"
    )


def test_options_of_reading_and_of_writing_are_not_mixed(staging: StagingCommands, tmp_path: Path) -> None:
    file, target = written(staging, tmp_path, line(b"a")), tmp_path / "again.sst"
    for args, words in (
        ((file, "--type", "ranges"), "--type is of --write"),
        ((file, "--with-properties", file), "--with-properties is of --write"),
        (("-",), "not from standard input"),
        (("-", "--write", target), "Give --type ranges or metaranges"),
        (("-", "--write", target, "--type", "ranges", "--properties"), "leave out --properties"),
        (("-", "--write", target, "--type", "ranges", "-o", "json"), "leave out --output"),
    ):
        assert words in staging.fails("debug", "sst", *args, code=2, input=line(b"b")), args
    assert not target.exists()
