"""A defect: one change of the source text, the promise that it breaks, and the tests that notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Defect:
    """`old` stands exactly once in `file` (below `operator/compaction`), and the defect puts `new` in its place.

    `promise`: the page below `docs/`, with the heading where the promise stands (`page.md#heading`). `killers`: what
    pytest is given, files or node ids below `tests/`.
    """

    name: str
    promise: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]

    def path(self, root: Path) -> Path:
        """The file in a checkout or in a copy of one."""
        return root / "operator" / "compaction" / self.file

    def applied(self, text: str) -> str:
        """The source with the defect. ValueError unless `old` stands in `text` exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name!r}: its text stands {count} times in {self.file}: take it from the source")
        return text.replace(self.old, self.new)
