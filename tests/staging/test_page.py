"""docs/staging.md and its two neighbours say what the code does: commands, thresholds, limits, operations, routes."""

from __future__ import annotations

import json
import re

import pytest

from compaction.api.policy.staging_area import MAX_TOKENS_PER_JOB, LakeFsMergeSpec, StagingThresholds
from compaction.staging.cli.commands import COMMANDS, DEBUG_COMMANDS
from compaction.staging.cli.exec import CREATE_REPO, OPERATIONS
from compaction.staging.cli.lakefs.lakefs_commands import COMMANDS as LAKEFS_COMMANDS
from compaction.staging.flows.reading import MOST_LISTED
from compaction.staging.flows.writing import MOST_DELETED
from compaction.staging.format.identity import MAX_PART_BYTES
from compaction.staging.kv.port import MAX_KEY_BYTES, MAX_VALUE_BYTES
from compaction.staging.serving.server import STAGING_API
from support.cluster.control_plane import ROOT

PAGE = (ROOT / "docs" / "staging.md").read_text()
EXEC = (ROOT / "docs" / "staging-exec.md").read_text()
INGEST = (ROOT / "docs" / "staging-ingest.md").read_text()
REFERENCE = (ROOT / "docs" / "commands.md").read_text()


@pytest.mark.parametrize("page", [PAGE, EXEC, INGEST, REFERENCE], ids=["staging", "exec", "ingest", "commands"])
def test_commands_exist(page: str) -> None:
    assert set(re.findall(r"compactor staging ([a-z][a-z-]*)", page)) <= COMMANDS.keys()
    assert set(re.findall(r"compactor staging lakefs ([a-z][a-z-]*)", page)) <= LAKEFS_COMMANDS.keys()
    assert set(re.findall(r"compactor staging debug ([a-z][a-z-]*)", page)) <= DEBUG_COMMANDS.keys()


def test_all_commands_are_listed() -> None:
    section = REFERENCE.split("\n## staging\n")[1].split("\n## ")[0]
    named = {
        name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`([a-z-]+)", cell)
    }
    assert COMMANDS.keys() <= named
    assert all(f"`debug {name}" in section for name in DEBUG_COMMANDS)


def test_thresholds() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.split("### Thresholds")[1], re.MULTILINE))
    defaults = StagingThresholds().model_dump(by_alias=True)
    assert {name: rows[name] for name in defaults} == {
        name: "none" if value is None else str(value) for name, value in defaults.items()
    }


def test_settings_of_a_live_lakefs() -> None:
    (shown,) = re.findall(r"lakefs: \{(.*)\}", PAGE)
    assert set(re.findall(r"(\w+): ", shown)) == set(LakeFsMergeSpec().model_dump(by_alias=True))
    assert "It begins as a dry run" in PAGE
    assert LakeFsMergeSpec().dry_run


def test_limits() -> None:
    limits = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", PAGE.split("## Limits")[1], re.MULTILINE))
    assert limits["key and its partition"].startswith(f"{MAX_KEY_BYTES:,} bytes")
    assert limits["value of a row"].startswith(f"{MAX_VALUE_BYTES >> 20} MiB")
    assert f"at most {MAX_PART_BYTES >> 20} MiB" in limits["value of a row"]
    assert limits["keys in one batch of deletions"] == f"{MOST_DELETED:,}"
    assert limits["page of a listing"] == f"{MOST_LISTED:,} entries"
    assert limits["tokens of a job"].startswith(f"{MAX_TOKENS_PER_JOB:,};")


def test_operations_of_a_history() -> None:
    table = EXEC.split("## Operations")[1].split("|---|---|\n")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    assert rows.keys() == {CREATE_REPO, *OPERATIONS}
    for name, operation in OPERATIONS.items():
        assert tuple(re.findall(r"`(\w+)`", rows[name])) == operation.fields


def test_the_example_of_a_history_is_one() -> None:
    block = EXEC.split("$ cat history.jsonl\n")[1].split("\n$ ")[0]
    lines = [json.loads(line) for line in block.splitlines()]
    assert len(lines) > 3
    for line in lines:
        operation = OPERATIONS[line["op"]]
        assert line.keys() - {"op", "repo"} <= set(operation.fields)


def test_routes() -> None:
    served = {
        (operation.method, operation.path) for operation in STAGING_API.operations if operation.path.startswith("/v1/")
    }
    root = "/v1/repositories/{repository}"
    shown = {(method, root + path) for method, path in re.findall(r"^\| `([A-Z]+) ([^`?]+)", INGEST, re.MULTILINE)}
    assert shown == served


def test_the_pages_can_be_found() -> None:
    assert "(docs/staging.md)" in (ROOT / "README.md").read_text()
    assert "(staging-exec.md)" in PAGE
    assert "(staging-ingest.md)" in PAGE
