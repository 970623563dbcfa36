"""`compactor staging debug sst`: ranges and metaranges as lines of JSON, and back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.staging.test_maintenance import objects
from compaction.staging.cli.values import raw_value
from support.stores.staging_commands import StagingCommands, in_folder


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
