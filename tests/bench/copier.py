"""The honest limit of a compaction: a C program that is told which bytes to copy, and does nothing else with them.

It has what ours has to find out: the plan, the runs of live payload, and the output's header with its index. It checks
no CRC, reads nothing back, and takes no lock.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from compaction.segments.format.segment_file import read_segment
from compaction.segments.planning.plan import LogPlan, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import LogState, open_log

SOURCE: Final = Path(__file__).with_name("copier.c")
_NAME: Final = 32


def build(directory: Path) -> Path | None:
    """The compiled copier in `directory`; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    program = directory / "copier"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", str(program), str(SOURCE)], check=True)
    return program


def write_plan(path: Path, template: Path, limits: SegmentLimits, outputs: Iterable[Path]) -> None:
    """What the copier has to do with a copy of `template`. `outputs` are what a compaction made of the groups."""
    log = open_log(template)
    plan = plan_log(log, limits)
    path.write_bytes(b"".join(_groups(log, plan, template, outputs)))


def _groups(log: LogState, plan: LogPlan, template: Path, outputs: Iterable[Path]) -> Iterator[bytes]:
    assert log.live is not None
    for group, output in zip(plan.groups, outputs, strict=True):
        runs = []
        for number, name in enumerate(group.sources):
            segment = read_segment(template / name)
            rows = segment.effective.nonzero()[0]
            rows = rows[log.live.mask(segment.idx[rows])]
            runs.append(_runs(number, segment.offset[rows].astype("u8"), segment.length[rows].astype("u8")))
        table = np.concatenate(runs)
        content = output.read_bytes()
        header = content[: len(content) - int(table[:, 2].sum())]
        yield struct.pack("=QQQ", len(group.sources), len(table), len(header))
        for name in (f"{group.sources[0]}.copy", *group.sources):
            yield name.encode().ljust(_NAME, b"\0")
        yield table.tobytes()
        yield header.ljust(-(-len(header) // 8) * 8, b"\0")


def _runs(number: int, offset: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Rows (source, offset, length) of payloads that lie one behind the other, joined."""
    starts = np.flatnonzero(np.concatenate(([True], offset[1:] != offset[:-1] + length[:-1])))
    sums = np.add.reduceat(length, starts)
    return np.column_stack((np.full(starts.size, number, dtype="u8"), offset[starts], sums)).astype("=u8")


def copy(program: Path, directory: Path, plan: Path) -> None:
    """Compact `directory`, a copy of the template."""
    subprocess.run([str(program), str(directory), str(plan)], check=True)
