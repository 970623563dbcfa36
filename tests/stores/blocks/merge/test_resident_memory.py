"""The configured limit against what the operating system counts: a merge of far more data than it may hold.

test_kernel.py measures Arrow's pool, which is most of it. Here is everything: numpy's arrays, codecs, what allocators
keep. Besides its limit a merge takes a fixed amount (`OWN_MEMORY`), whatever the limit and the inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from compaction.stores.blocks.fingerprint import fingerprint
from compaction.stores.blocks.merge.settings import MEBIBYTE, OWN_MEMORY
from support.stores.block_engines import generate

TESTS = Path(__file__).resolve().parents[3]
FILES, ROWS = 24, 100_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("merge") / "in"
    generate(directory, files=FILES, rows=ROWS)
    return sorted(directory.iterdir())


@pytest.mark.parametrize("limit", [16 * MEBIBYTE, 48 * MEBIBYTE])
def test_resident_memory_stays_within_the_limit(limit: int, inputs: list[Path], tmp_path: Path) -> None:
    """2.4 million rows of about 110 bytes: several times either limit. The smaller one takes two passes."""
    arrow_bytes = FILES * pq.read_table(inputs[0]).nbytes
    assert arrow_bytes > 3 * limit
    command = [sys.executable, "-m", "stores.blocks.merge.memory", str(limit), str(tmp_path / "out"), *map(str, inputs)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found = json.loads(answer.stdout)
    assert found["rows"] == FILES * ROWS
    assert found["read"] == str(sum((fingerprint(pq.read_table(path)) for path in inputs), fingerprint([])))
    taken = found["peak"] - found["base"]
    assert taken <= limit + OWN_MEMORY, f"{taken / MEBIBYTE:.0f} MiB where {limit / MEBIBYTE:.0f} are allowed"
