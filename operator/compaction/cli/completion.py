"""`kubectl_complete-compaction`: completion of `kubectl compaction ...`, asked for by kubectl's own completion.

kubectl runs it with the words after `compaction`, the last of them unfinished, and reads one candidate per line, with a
tab before its description, then a directive (cobra's protocol: `:4` means no file names beside these).
"""

from __future__ import annotations

import sys
from typing import Final

from click.shell_completion import CompletionItem, ShellComplete

from compaction.cli.main import cli

NO_FILES: Final = ":4"
FILES: Final = ":0"


def completions(words: list[str]) -> list[str]:
    """The lines of the answer."""
    *before, unfinished = words or [""]
    items = ShellComplete(cli, {}, "compactor", "").get_completions(before, unfinished)
    plain = [item for item in items if item.type == "plain"]
    directive = NO_FILES if len(plain) == len(items) else FILES
    return [*(_line(item) for item in plain), directive]


def _line(item: CompletionItem) -> str:
    return f"{item.value}\t{item.help}" if item.help else str(item.value)


def main() -> int:
    """Entry point."""
    sys.stdout.write("".join(f"{line}\n" for line in completions(sys.argv[1:])))
    return 0
