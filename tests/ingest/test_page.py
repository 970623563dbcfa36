"""What docs/block-ingest.md shows works as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compaction.blocks.store import BlockStore, BlockStoreConnection
from support.cluster.rendered import ROOT
from support.stores.block_stores import fill

PAGE = (ROOT / "docs" / "block-ingest.md").read_text()


def test_the_program_that_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    index = tmp_path / "_compaction" / "index.db"
    index.parent.mkdir()
    store = BlockStore.open(BlockStoreConnection(str(tmp_path), f"sqlite:///{index}"))
    fill(store, [1, 2])
    store.close()
    program = program.replace("/data/lake", str(tmp_path)).replace("1_767_225_600_000_000", "150")
    exec(compile(program + "\nstore.close()", "docs/block-ingest.md", "exec"), {})
    assert capsys.readouterr().out == "50\n100\n"
