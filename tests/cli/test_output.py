"""The shared output helpers."""

from __future__ import annotations

import json
from collections.abc import Callable

import click
import pytest
import yaml
from click.testing import CliRunner

from compaction.cli.lazy import ErrorGroup, describe
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    TableStream,
    emit,
    optional_bytes,
    output_option,
    print_table,
)
from compaction.segments.errors import NotALogDirectoryError

ROWS = [{"name": "a", "size": 5}, {"name": "long name", "size": None}]
COLUMNS = (OutputColumn("name", "name"), OutputColumn("size", "size", optional_bytes, right=True))


@pytest.fixture
def printed() -> Callable[..., str]:
    def run(data: object, fmt: str) -> str:
        @click.command()
        @output_option(jsonl=True)
        def command(output: OutputFormat) -> None:
            emit(data, output, columns=COLUMNS)  # type: ignore[arg-type]

        return CliRunner().invoke(command, ["-o", fmt]).stdout

    return run


def test_rows(printed: Callable[..., str]) -> None:
    assert json.loads(printed(ROWS, "json")) == ROWS
    assert yaml.safe_load(printed(ROWS, "yaml")) == ROWS
    assert [json.loads(line) for line in printed(ROWS, "jsonl").splitlines()] == ROWS
    assert printed(ROWS, "table") == "NAME        SIZE\na              5\nlong name      -\n"


def test_a_terminal_never_loses_half_a_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table([{"name": "n" * 60, "size": 3}], COLUMNS, terminal=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE"]
    assert lines[1].split() == ["n" * 60, "3"]


def test_one_object(printed: Callable[..., str]) -> None:
    assert printed({"a": 1, "longer": None}, "table") == "a:       1\nlonger:  -\n"
    assert json.loads(printed({"a": 1}, "jsonl")) == {"a": 1}


def test_bytes_are_written_as_in_the_resources() -> None:
    assert [optional_bytes(value) for value in (None, 0, 1536)] == ["-", "0", "1.5Ki"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotALogDirectoryError("/d", "it is\n  gone"), "error: /d: not a segment log directory: it is gone\n"),
        (PermissionError(13, "Permission denied", "/d/x"), "error: /d/x: Permission denied\n"),
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
    ],
)
def test_errors_end_in_one_line_and_exit_code_1(error: Exception, text: str) -> None:
    @click.group(cls=ErrorGroup)
    def group() -> None:
        """A group."""

    @group.command()
    def fail() -> None:
        raise error

    result = CliRunner().invoke(group, ["fail"])
    assert (result.exit_code, result.stderr, result.stdout) == (1, text, "")


def test_an_error_without_text_is_named_by_its_type() -> None:
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_rows_that_come_one_by_one_keep_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    table = TableStream(COLUMNS)
    for row in ({"name": "a", "size": 5}, {"name": "longer", "size": 1 << 20}, {"name": "b", "size": 1}):
        table.print(row)
    assert capsys.readouterr().out == "NAME   SIZE\na         5\nlonger    1Mi\nb           1\n"
