"""Commands in the documentation, so that tests can run them as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[list[str]]:
    """The commands of a page in their order, split into words: the lines of its fenced blocks without a language."""
    blocks = [text for language, text in _FENCE.findall(page.read_text()) if not language]
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]
