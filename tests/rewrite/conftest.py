from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.segments.commit import fence
from compaction.segments.generate import Pattern, generate_log
from support.processes.worker_ports import ThreadEngine

MakeLog = Callable[..., Path]


@pytest.fixture
def make_log(tmp_path: Path) -> MakeLog:
    """A small generated log; token 1 of `job-1` is claimed unless told otherwise."""

    def make(name: str = "log", *, pattern: Pattern = Pattern.RANDOM, segments: int = 10, claim: int = 1) -> Path:
        directory = tmp_path / name
        generate_log(
            directory,
            pattern=pattern,
            segments=segments,
            entries_per_segment=64,
            payload_bytes=128,
            live_fraction=0.3,
            sync=False,
        )
        if claim:
            fence.claim(directory, job="job-1", token=claim, holder="test")
        return directory

    return make


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()
