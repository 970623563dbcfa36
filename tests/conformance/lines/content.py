"""Lines: what readers find, and the merge with its proof."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.lines import files, record

_DIGESTS: Final = 1 << 128


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Files of a directory that become one, `output`."""

    directory: str
    sources: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of them. `damaged`: what is wrong with each source that was left out. Nothing is written of none."""

    sources: tuple[str, ...]
    damaged: dict[str, str]
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    before: str = ""
    after: str = ""


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file, each a JSON value. Raises ValueError: one of them is not."""
    lines = path.read_bytes().splitlines()
    for line in lines:
        json.loads(line)
    return lines


def content(directory: Path) -> list[bytes]:
    """Every line that readers find, in order."""
    names = record.read(directory).live(record.listing(directory))
    return sorted(line for name in names for line in lines_of(directory / name))


def fingerprint(lines: list[bytes]) -> str:
    """The same for the same lines in any order: their number, and the sum of their hashes."""
    total = sum(int.from_bytes(hashlib.sha256(line).digest()[:16]) for line in lines)
    return f"{len(lines)}:{total % _DIGESTS:032x}"


def merge(task: MergeTask) -> Merged:
    """What runs in a task: read, write, read back. Raises LinesError."""
    directory = Path(task.directory)
    found: dict[str, list[bytes]] = {}
    damaged: dict[str, str] = {}
    with record.errors(directory):
        for name in task.sources:
            try:
                found[name] = lines_of(directory / name)
            except FileNotFoundError as error:
                raise record.LinesChangedError(f"{directory / name} is not there any more") from error
            except ValueError as error:
                damaged[name] = f"{directory / name}: a line is no JSON: {error}"
        if not found:
            return Merged((), damaged)
        lines = [line for some in found.values() for line in some]
        files.put(directory / task.output, b"".join(line + b"\n" for line in lines))
        written = lines_of(directory / task.output)
        return Merged(
            tuple(found),
            damaged,
            records=len(written),
            bytes_before=sum((directory / name).stat().st_size for name in found),
            bytes_after=(directory / task.output).stat().st_size,
            before=fingerprint(lines),
            after=fingerprint(written),
        )
