"""Segment logs: directories of files, each of whose writes may fail (`support.faults.sudden_death`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from compaction.segments.commit import fence
from compaction.segments.format.segment_file import read_segment
from compaction.segments.generate import corrupt_entry
from compaction.segments.reading.view import open_log
from compaction.storage.secrets import NO_SECRETS, Secrets
from conformance.harness import Fault, Strike
from support.faults.sudden_death import DyingFilesystem, SuddenDeath, deaths, points
from support.segments.segment_logs import VARIED_LIMITS, content, leftovers, varied_log

EIO: Final = 5


class SegmentHarness:
    """Implements `Harness`. Target `number` is a log with every kind of work."""

    secrets: Secrets = NO_SECRETS
    death: type[BaseException] = SuddenDeath
    charged = True
    shares_outputs = False
    indivisible = False

    def __init__(self, root: Path) -> None:
        self.root = root
        limits = {
            "maxEntriesPerSegment": VARIED_LIMITS.max_entries,
            "maxBytesPerSegment": str(VARIED_LIMITS.max_bytes),
        }
        self.store: dict[str, Any] = {"segmentLogs": {"root": str(root), **limits}}

    def fill(self, number: int) -> None:
        self._log(number).mkdir(parents=True)
        varied_log(self._log(number))

    def content(self, number: int) -> object:
        return content(self._log(number))

    def opens(self, target: str, source: str) -> bool:
        path = (Path(target) / source).resolve()
        return path.exists() and read_segment(path).count > 0

    def damage(self, target: str, source: str) -> Callable[[], object]:
        path = Path(target) / source
        sound, live = path.read_bytes(), open_log(Path(target)).live
        assert live is not None
        indexes = read_segment(path).idx.tolist()
        corrupt_entry(path.parent, segment=source, record=next(n for n, item in enumerate(indexes) if item in live))
        return lambda: path.write_bytes(sound)

    def leftovers(self) -> set[str]:
        return {f"{log.name}/{name}" for log in self._logs() for name in leftovers(log)}

    def replaced(self) -> set[str]:
        tombstones = ((log, tombstone.name) for log in self._logs() for tombstone in fence.read(log).tombstones)
        links = ((log, name) for log in self._logs() for name in os.listdir(log) if (log / name).is_symlink())
        return {f"{log.name}/{name}" for log, name in (*tombstones, *links) if os.path.lexists(log / name)}

    def check(self) -> None:
        """Nothing but the content is promised of a log that somebody has left half-done."""

    def strikes(self, calls: list[str], fault: Fault) -> Sequence[Strike]:
        return strikes_of_files(calls, fault)

    def struck(self, strike: Strike | None) -> AbstractContextManager[DyingFilesystem]:
        return struck_files(strike)

    def survives(self, strike: Strike) -> bool:
        return False

    def later(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _log(self, number: int) -> Path:
        return self.root / f"log-{number}"

    def _logs(self) -> Iterator[Path]:
        return self.root.iterdir()


def struck_files(strike: Strike | None, **module: Any) -> DyingFilesystem:
    """The fault at a system call; `module`: what the store writes through, if not what segment logs do."""
    if strike is None:
        return DyingFilesystem(**module)
    error = OSError(EIO, "no answer, as the test wants it") if strike.fault is Fault.LOST else None
    when: Any = strike.when
    return DyingFilesystem(at=strike.at, when=when, error=error, **module)


def strikes_of_files(calls: list[str], fault: Fault) -> list[Strike]:
    """Of a store that is files. Before a call the disk is as it was after the last one."""
    if fault is Fault.LOST:
        return [Strike(at, "after", calls[at], fault) for at in points(calls)]
    return [Strike(at, when, name, fault) for at, when, name in deaths(calls, ("after", "during"))]
