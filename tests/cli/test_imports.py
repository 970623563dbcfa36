"""What commands import: who asks an index or reads a log does not pay for what only merges, models or clusters need.

The modules are named, not the time: on a machine with other work a time says nothing.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from compaction.cli.lazy import freeze_modules, pause_collector
from compaction.cli.main import Compactor, main
from support.blocks.block_commands import BlockCommands

RUN = """
import json, sys
from compaction.cli.main import main
heavy = set(sys.argv[1].split(","))
for command in json.loads(sys.argv[2]):
    try:
        code = main(command)
    except SystemExit as end:  # a command may end the process itself
        code = end.code
    print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
    if code:
        sys.exit(f"{command}: {code}")
"""
CLUSTER = {"kopf", "kubernetes", "aiohttp", "pyspark"}
PARQUET = {"pyarrow", "numpy"}
MODELS = {"pydantic", "yaml", "compaction.api.policy.policy"}
SQL = {"sqlalchemy", "alembic", "mako", "sqlalchemy.dialects.postgresql", "psycopg"}
DATABASE = SQL | {"obstore"}
TALK = {"rich", "structlog"}


def imported(heavy: set[str], *commands: Sequence[str | Path], **environment: str) -> list[str]:
    """Those of `heavy` that are imported when a command has ended: of commands one after the other in one process, so
    each has what those before it imported.
    """
    words = json.dumps([[str(word) for word in command] for command in commands])
    command = [sys.executable, "-c", RUN, ",".join(heavy), words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr.splitlines()[-len(commands) :]


def test_help_imports_nothing_of_it() -> None:
    commands = [["--help"], ["blocks", "--help"], ["segments", "--help"], ["staging", "--help"], ["--version"]]
    assert imported(CLUSTER | PARQUET | MODELS | DATABASE | TALK, *commands) == [""] * len(commands)


@pytest.mark.parametrize(
    ("commands", "heavy"),
    [
        pytest.param(
            [
                *(f"staging {word}" for word in ("branch", "commit", "list", "compact", "debug exec")),
                *(f"staging lakefs {word}" for word in ("inspect", "merge", "sweep", "hold")),
            ],
            CLUSTER | MODELS | SQL | TALK,
            id="ranges and no store",
        ),
        pytest.param(
            [
                *("why", "drill fencing", "operator", "staging serve", "catalogs serve", "catalogs debug conformance"),
                *(f"blocks {word}" for word in ("plan", "compact", "register", "verify", "rebuild-index", "serve")),
            ],
            CLUSTER | PARQUET | MODELS,
            id="no Parquet and no policies",
        ),
        pytest.param(
            ["staging inspect", "staging plan", "status", "plan", "approve", "retry", "quarantine"],
            CLUSTER | PARQUET | DATABASE | TALK,
            id="policies and nothing that they are of",
        ),
        pytest.param(["worker"], CLUSTER | PARQUET | DATABASE, id="Spark when it is started, and its client then"),
    ],
)
def test_help_of_a_command_imports_nothing_that_only_its_work_needs(commands: Sequence[str], heavy: set[str]) -> None:
    assert imported(heavy, *[[*item.split(), "--help"] for item in commands]) == [""] * len(commands)


def test_who_asks_the_index_imports_the_database_only(blocks: BlockCommands) -> None:
    blocks.add(1, 2)
    heavy = (CLUSTER | PARQUET | MODELS | DATABASE | TALK) - {"sqlalchemy", "obstore"}
    asked = ["list", "inspect", "quarantine", "sweep --keep 744h", "sweep --apply --grace 1h"]
    commands = [["blocks", *item.split()] for item in asked]
    assert imported(heavy, *commands, **blocks.environment) == [""] * len(commands)


def test_who_looks_into_a_log_imports_no_store_of_blocks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert main(["segments", "debug", "generate", str(log)]) == 0
    heavy = CLUSTER | DATABASE | {"pyarrow", "compaction.api.policy.policy"}
    assert imported(heavy, ["segments", "inspect", log]) == [""]


def test_a_run_of_a_policy_imports_nothing_of_catalogs(tmp_path: Path) -> None:
    root, file = tmp_path / "logs", tmp_path / "policy.yaml"
    root.mkdir()
    file.write_text(
        "apiVersion: compaction.dev/v1alpha1\nkind: CompactionPolicy\nmetadata: {name: logs}\n"
        f"spec: {{store: {{segmentLogs: {{root: {root}}}}}}}\n"
    )
    heavy = {"compaction.catalogs", "compaction.api.catalog.catalog", "kubernetes", "kopf"}
    assert imported(heavy, ["run", "-f", file, "--dry-run"]) == [""]


def test_garbage_is_looked_for_as_soon_as_a_command_is_imported_and_not_among_modules() -> None:
    group = Compactor("compactor")
    context = click.Context(group)
    pause_collector()
    try:
        assert group.get_command(context, "blocks") is not None, "a group imports its own commands later"
        assert not gc.isenabled()
        assert group.get_command(context, "approve") is not None
        assert gc.isenabled()
        assert (frozen := gc.get_freeze_count()) > 0
        imported_later: list[list[str]] = [[]]
        freeze_modules()
        assert gc.get_freeze_count() > frozen, f"those that run for days import more when they run: {imported_later}"
    finally:
        gc.unfreeze()
        gc.enable()


def test_a_command_in_the_callers_process_leaves_garbage_to_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["segments", "--help"]) == 0
    freeze_modules()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert capsys.readouterr().out
