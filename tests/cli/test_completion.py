"""Completion, as a shell and as kubectl ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

from compaction.cli.completion import FILES, NO_FILES, completions
from compaction.cli.main import COMMANDS, called_as


def test_kubectl_is_told_commands_options_and_their_values() -> None:
    assert completions([]) == [*(f"{name}\t{COMMANDS[name][1]}" for name in COMMANDS), NO_FILES]
    assert [line.split("\t")[0] for line in completions(["qua"])] == ["quarantine", NO_FILES]
    assert [line.split("\t")[0] for line in completions(["quarantine", "r"])] == ["release", NO_FILES]
    assert completions(["status", "-o", ""]) == ["table", "wide", "json", "yaml", NO_FILES]
    assert any(line.startswith("--all-namespaces\t") for line in completions(["status", "--a"]))
    assert completions(["status", "--kubeconfig", ""]) == [FILES]


def test_a_shell_is_told_the_same() -> None:
    environment = os.environ | {"_COMPACTOR_COMPLETE": "bash_complete", "COMP_WORDS": "compactor wh", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "compaction.cli.main"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert answer.stdout == "plain,why\n"


def test_the_program_goes_by_the_name_it_was_called_by() -> None:
    assert called_as("/usr/bin/kubectl-compaction") == "kubectl compaction"
    assert called_as("/usr/bin/compactor") == called_as("-m") == "compactor"
