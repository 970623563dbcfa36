"""The shared output helpers."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from compaction.blocks.model import block_path
from compaction.cli.cluster.why import show
from compaction.cli.lazy import ErrorGroup, describe
from compaction.cli.main import COMMANDS, FILES, NO_FILES, called_as, completions, main
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    TableStream,
    emit,
    optional_bytes,
    output_option,
    print_pairs,
    print_table,
)
from compaction.cli.values import DurationParameter
from compaction.core.explain.why_policy import explain_policy
from compaction.errors import CompactionError
from compaction.segments.errors import NotALogDirectoryError
from compaction.unexpected import defect
from support.cluster.by_kubectl import Cluster
from support.cluster.explained import NOW, policy_with
from support.cluster.manifests import job_object, policy_object
from support.cluster.orders import catalog_object

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


# Completion, as a shell and as kubectl ask for it.


def test_kubectl_is_told_commands_options_and_their_values() -> None:
    assert completions([]) == [*(f"{name}\t{COMMANDS[name][1]}" for name in COMMANDS), NO_FILES]
    assert [line.split("\t")[0] for line in completions(["qua"])] == ["quarantine", NO_FILES]
    assert [line.split("\t")[0] for line in completions(["quarantine", "--r"])] == ["--release", NO_FILES]
    assert completions(["status", "-o", ""]) == ["table", "wide", "json", "yaml", NO_FILES]
    assert any(line.startswith("--all-namespaces\t") for line in completions(["status", "--a"]))
    assert completions(["status", "--kubeconfig", ""]) == [FILES]


@pytest.mark.apiserver
def test_names_of_policies_jobs_and_catalogs_are_completed(control_plane: Any, namespace: str) -> None:
    cluster = Cluster(control_plane, namespace)
    cluster.apply(policy_object("logs"))
    cluster.apply(job_object("logs-1", policy="logs"))
    cluster.apply(catalog_object("orders"))
    where = ["--kubeconfig", str(control_plane.kubeconfig), "-n", namespace]
    assert completions(["status", *where, ""]) == ["logs", "ccat/orders", NO_FILES]
    assert completions([*where, "status", "l"]) == ["logs", NO_FILES], "the flags may stand before the verb"
    assert completions([*where, "why", ""]) == ["logs", "logs-1", "ccat/orders", NO_FILES]
    assert completions([*where, "retry", "logs-"]) == ["logs-1", NO_FILES]
    assert completions([*where, "quarantine", ""]) == ["logs", NO_FILES]
    assert namespace in completions([*where[:2], "status", "-n", ""])
    assert completions(["--kubeconfig", "/nowhere", "status", ""]) == [NO_FILES], "no cluster is no name, and no error"


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stauts"]) == 2
    assert "Did you mean 'status'?" in capsys.readouterr().err
    assert main(["segments", "inspekt", "."]) == 2
    assert "Did you mean 'inspect'?" in capsys.readouterr().err


def test_flags_of_a_cluster_before_a_command_that_knows_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "storage", "segments", "inspect", "."]) == 2
    assert "segments takes no --namespace before its name" in capsys.readouterr().err
    assert main(["-A", "why", "x"]) == 2
    assert "why reads one namespace: give -n, not -A" in capsys.readouterr().err


def test_a_shell_is_told_the_same() -> None:
    environment = os.environ | {"_COMPACTOR_COMPLETE": "bash_complete", "COMP_WORDS": "compactor wh", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "compaction.cli.main"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert answer.stdout == "plain,why\n"


def test_the_program_goes_by_the_name_it_was_called_by() -> None:
    assert called_as("/usr/bin/kubectl-compaction") == "kubectl compaction"
    assert called_as("/usr/bin/compactor") == called_as("-m") == "compactor"


# Durations as options: as in a policy, or a plain number of seconds.


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1h", 3600),
        ("1h30m", 5400),
        ("600", 600),
        ("90d", 7776000),
        ("0", 0),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("1.7999999999999998", 1.8),
    ],
)
def test_durations_are_read_as_in_a_policy_or_as_seconds(written: str, seconds: float) -> None:
    assert DurationParameter().convert(written, None, None) == seconds


@pytest.mark.parametrize("written", ["", "-1", "1 h", "ten", "1e3", "٣", "1000000000"])
def test_what_is_no_duration_is_refused_with_the_form(written: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write a duration such as 30s.*, or seconds as a number"):
        DurationParameter().convert(written, None, None)


def test_bounds_are_named() -> None:
    with pytest.raises(click.BadParameter, match="the shortest is 1s"):
        DurationParameter(least=1).convert("500ms", None, None)
    with pytest.raises(click.BadParameter, match="not a whole number of seconds"):
        DurationParameter(whole=True).convert("1.5", None, None)


# Names of directories and files are whatever somebody called them: none of them steers the reader's terminal.

HOSTILE = "/ra/\x1b]0;evil\x07\x1b[2J"


def test_a_path_in_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"hash": "4d5e", "jobs": 1, "leftOut": [{"reason": "Cooldown", "count": 1, "example": HOSTILE}]}
    show(explain_policy(policy_with({"plan": plan}), (), None, NOW))
    told = capsys.readouterr().out
    assert "\\x1b[2J" in told
    assert "\x1b" not in told


def test_a_value_beside_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("Log", HOSTILE)])
    told = capsys.readouterr().out
    assert "\\x1b[2J" in told
    assert "\x1b" not in told


# What is said of an exception that nothing expects: kind and place to users, everything to the log.


def test_users_read_the_place_and_the_log_has_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    try:
        block_path("t", None, "secret")  # type: ignore[arg-type]
    except TypeError as error:
        said = defect(error, "a/b.parquet")
    assert said.startswith("an unexpected TypeError at blocks/model.py:")
    assert "NoneType" not in said
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "unexpected failure of a/b.parquet")
    assert "Traceback" in caplog.text


def test_errors_of_ours_say_themselves(caplog: pytest.LogCaptureFixture) -> None:
    assert defect(CompactionError("no such log: create it"), "a") == "no such log: create it"
    assert caplog.records == []


def test_without_any_log_nothing_is_written_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        defect(KeyError("x"), "a") == "an unexpected KeyError at an unknown place; this is a defect: please report it"
    )
    assert capfd.readouterr().err == ""
