"""Directories of JSON lines: the third kind, which lives in the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from compaction.storage.secrets import NO_SECRETS, Secrets
from conformance.harness import Fault, Strike
from conformance.harnesses.segments import strikes_of_files, struck_files
from conformance.lines import record
from conformance.lines.rewriter import content, lines_of
from support.faults.sudden_death import DyingFilesystem, SuddenDeath


class LineHarness:
    """Implements `Harness`. Target `number` is a directory with three small files and a large one."""

    secrets: Secrets = NO_SECRETS
    death: type[BaseException] = SuddenDeath
    charged = True
    shares_outputs = False
    indivisible = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store: dict[str, Any] = {"lineStore": {"root": str(root)}}

    def fill(self, number: int) -> None:
        fill(self.root / f"lines-{number}")

    def content(self, number: int) -> object:
        return content(self.root / f"lines-{number}")

    def opens(self, target: str, source: str) -> bool:
        return len(lines_of(Path(target) / source)) > 0

    def damage(self, target: str, source: str) -> Callable[[], object]:
        path = Path(target) / source
        sound = path.read_bytes()
        path.write_bytes(sound[:-5])
        return lambda: path.write_bytes(sound)

    def leftovers(self) -> set[str]:
        return {
            f"{item}/{name}"
            for item in self.root.iterdir()
            for name in record.read(item).leftovers(record.listing(item))
        }

    def replaced(self) -> set[str]:
        return {f"{item}/{name}" for item in self.root.iterdir() for name in record.read(item).replaced}

    def check(self) -> None:
        for directory in self.root.iterdir():
            assert set(record.read(directory).outputs) <= set(record.listing(directory))

    def strikes(self, calls: list[str], fault: Fault) -> Sequence[Strike]:
        return strikes_of_files(calls, fault)

    def struck(self, strike: Strike | None) -> AbstractContextManager[DyingFilesystem]:
        return struck_files(strike, module=record)

    def survives(self, strike: Strike) -> bool:
        return False

    def later(self) -> AbstractContextManager[object]:
        return nullcontext()


def fill(directory: Path, *, small: int = 3) -> None:
    """Small files, and one that is large enough to be left alone."""
    directory.mkdir(parents=True)
    for number in range(small + 1):
        lines = range(3 if number < small else 200)
        text = "".join(json.dumps({"file": number, "line": line}) + "\n" for line in lines)
        (directory / f"{number}.jsonl").write_text(text)
