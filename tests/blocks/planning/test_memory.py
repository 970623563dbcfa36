"""What a block costs in the queue, counted by tracemalloc: at most 1 KiB, also where each is alone in its group."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

from compaction.blocks.planning.batches import BlockClass, BlockRules, QueuedBlock
from compaction.blocks.planning.queue import BlockQueue

RULES = BlockRules()
BLOCKS = 20_000
LATER = 1_800_000_000.0


def block(number: int, window: int, kin: BlockClass) -> QueuedBlock:
    """As the index gives it: every value is an object of its own, except the class, which its blocks share."""
    return QueuedBlock(
        id=f"01ARZ3NDEK{number:016d}",
        kin=kin,
        level=number % 3,
        bytes=5_000_000 + number,
        min_time=window * RULES.span,
        arrived=1_700_000_000.0 + number * 0.01,
        number=number + 1000,
    )


SHAPES: dict[str, Callable[[int, list[BlockClass]], QueuedBlock]] = {
    "few groups": lambda n, classes: block(n, n % 4, classes[n % 8]),
    "one window each": lambda n, classes: block(n, n + 1000, classes[n % 8]),
    "one tenant for two": lambda n, classes: block(n, n % 2, classes[n]),
}


def measured(shape: str) -> tuple[float, float]:
    """Bytes per block before and after they are due."""
    made = SHAPES[shape]
    gc.collect()
    tracemalloc.start()
    try:
        tenants, shards = (BLOCKS // 2, 2) if "tenant" in shape else (1, 8)
        names = [f"tenant-{number:06d}" for number in range(tenants)]
        classes = [BlockClass(name, shard) for name in names for shard in range(shards)]
        queue = BlockQueue(RULES)
        assert queue.push_all(made(number, classes) for number in range(BLOCKS)) == BLOCKS
        before = tracemalloc.get_traced_memory()[0] / BLOCKS
        queue.advance(LATER)
        return before, tracemalloc.get_traced_memory()[0] / BLOCKS
    finally:
        tracemalloc.stop()


def test_a_block_takes_at_most_a_kibibyte_before_and_after_it_is_due() -> None:
    """In a process of its own: threads that earlier tests left allocate as well."""
    child = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True)
    found: dict[str, tuple[float, float]] = json.loads(child.stdout)
    assert found.keys() == SHAPES.keys()
    for shape, (before, after) in found.items():
        assert 256 < before <= 1024, f"{shape}: {before:,.0f} bytes"
        assert 256 < after <= 1024, f"{shape}: {after:,.0f} bytes when due"


if __name__ == "__main__":
    print(json.dumps({shape: measured(shape) for shape in SHAPES}))
