"""docs/block-stores.md says what the code does: tables, keys of footers, limits, commands, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compaction.blocks.cli.commands import COMMANDS
from compaction.blocks.format.footer import MAX_FOOTER
from compaction.blocks.format.metadata import MAX_ANCESTORS, PREFIX, BlockMetadata
from compaction.blocks.index.claims import MOST_SOURCES
from compaction.blocks.index.rows import MAX_LEVEL
from compaction.blocks.index.tables import METADATA, BlockState, IndexJobState, TombstoneReason
from compaction.blocks.model import MAX_SHARD, MAX_TENANT, RowFingerprint
from compaction.blocks.rewriting.merging import MOST_PARTS
from compaction.blocks.store import VERSION_TABLE
from compaction.storage.objects.store import MAX_PATH

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "block-stores.md").read_text()


def _columns(table: str) -> list[str]:
    """The first column of the table that follows the sentence about a table of the index."""
    found = re.search(rf"^`{table}`[^\n]*:\n\n\| column \| what \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found, table
    return [line.split("|")[1].strip().strip("`") for line in found[1].splitlines()]


def test_tables() -> None:
    for table in METADATA.sorted_tables:
        assert _columns(table.name) == [column.name for column in table.columns]
    described = re.findall(r"^`([a-z_]+)`[^\n]*:\n\n\| column", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(METADATA.tables)
    assert f"`{VERSION_TABLE}`" in PAGE
    for states in (BlockState, IndexJobState, TombstoneReason):
        assert ", ".join(f"`{state.value}`" for state in states) in PAGE


def test_keys_of_footers() -> None:
    said = BlockMetadata("i", "t", 0, 0, "c", RowFingerprint(), (), "j", 0, 1, ("s",), ("o",), ("a",), 1).encode()
    rows = re.search(r"\| key `compaction\.dev\.` \| what \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    assert rows
    named = [name for line in rows[1].splitlines() for name in re.findall(r"`([a-z-]+)`", line.split("|")[1])]
    assert sorted(named) == sorted(key.decode().removeprefix(PREFIX) for key in said)


def test_limits() -> None:
    limits = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", PAGE.split("## Limits")[1], re.MULTILINE))
    assert limits["tenant"].startswith(f"{MAX_TENANT} bytes")
    assert limits["path"].startswith(f"{MAX_PATH} bytes")
    assert MAX_SHARD == 2**31 - 1
    assert limits["level"].startswith(f"0 to {MAX_LEVEL}")
    assert limits["sources of a job"].replace(" ", "").startswith(str(MOST_SOURCES))
    assert limits["outputs of a job"] == str(MOST_PARTS)
    assert limits["footer"] == f"{MAX_FOOTER >> 20} MiB"
    assert f"up to {MAX_ANCESTORS} ids" in PAGE


def test_commands() -> None:
    named = set(re.findall(r"compactor blocks ([a-z-]+)", PAGE))
    assert named <= COMMANDS.keys()
    assert {"register", "list", "inspect", "sweep", "quarantine", "rebuild-index"} <= named


@pytest.mark.parametrize("page", ["README.md", "docs/block-stores.md"])
def test_links(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / target).exists(), target
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_the_page_can_be_found() -> None:
    assert "(docs/block-stores.md)" in (ROOT / "README.md").read_text()
