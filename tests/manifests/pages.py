"""Commands in the documentation, so that tests can run them as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_CODE = re.compile(r"`([^`]+)`")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[list[str]]:
    """The commands of a page in their order, split into words: the lines of its fenced blocks without a language."""
    return [shlex.split(line, comments=True) for block in blocks_of(page) for line in block]


def blocks_of(page: Path) -> list[list[str]]:
    """The same as written, with comments and pipes, block by block."""
    blocks = [text for language, text in _FENCE.findall(page.read_text()) if not language]
    return [[line for line in block.splitlines() if line.strip()] for block in blocks]


def script_of(page: Path, words: str) -> str:
    """The one shell script of a page that has these words: a fenced block in the language `sh`."""
    (found,) = [text for language, text in _FENCE.findall(page.read_text()) if language == "sh" and words in text]
    return str(found)


def sessions_of(page: Path) -> list[list[str]]:
    """The typed lines (behind `$`) of the fenced blocks of a page that show a terminal, block by block."""
    blocks = [text for language, text in _FENCE.findall(page.read_text()) if language == "console"]
    return [[line[2:] for line in block.splitlines() if line.startswith("$ ")] for block in blocks]


def inline_commands_of(page: Path, *programs: str) -> list[str]:
    """Whole commands in running text: what stands in backticks and begins with one of the programs."""
    text = _FENCE.sub("", page.read_text())
    found = [" ".join(code.split()) for code in _CODE.findall(text)]
    return [code for code in found if code.partition(" ")[0] in programs and " " in code]
