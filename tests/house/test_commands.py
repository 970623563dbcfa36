"""Commands: no more than a person can learn, one verb for one act in every wing, help in the imperative."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from compaction.cli.lazy import LazyGroup
from compaction.cli.main import cli
from compaction.wings import commands

MOST = 82
"""70, and those of a fleet: run-now, scan, suspend, resume, hold, release, events, history, check, version, debug,
and ui.
"""
SHARED = ("list", "inspect", "plan", "compact", "verify", "sweep")
"""Verbs that mean the same in every kind of store (docs/commands.md)."""
FLAGS_OF_PLAN = {"--dry-run", "--plan"}
FLAGS_OF_SWEEP = {"--delete", "--sweep", "--clean"}
VERBS = frozenset(
    [
        "Apply",
        "Approve",
        "Carry",
        "Check",
        "Collect",
        "Commit",
        "Compact",
        "Create",
        "Cut",
        "Delete",
        "Discard",
        "Explain",
        "Inspect",
        "Let",
        "List",
        "Make",
        "Merge",
        "Print",
        "Prove",
        "Put",
        "Read",
        "Rebuild",
        "Register",
        "Release",
        "Reset",
        "Resume",
        "Run",
        "Scan",
        "Serve",
        "Show",
        "Start",
        "Stop",
        "Suspend",
        "Take",
        "Try",
        "Work",
        "Write",
    ]
)
"""With what a summary begins. Another verb is added here, a question is not."""


def _walk(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command, str]]:
    """Path, command, and the line that the group around it shows."""
    context = click.Context(group, info_name="compactor")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        lines = group.summaries() if isinstance(group, LazyGroup) else {}
        yield (*path, name), command, lines.get(name, command.get_short_help_str(200))
        if isinstance(command, click.Group):
            yield from _walk(command, (*path, name))


FOUND = {" ".join(path): (command, line) for path, command, line in _walk(cli)}
LEAVES = {path: command for path, (command, _) in FOUND.items() if not isinstance(command, click.Group)}
WINGS = tuple(command.name for command in commands())


def test_there_are_no_more_than_a_person_can_learn() -> None:
    assert len(LEAVES) <= MOST


@pytest.mark.parametrize("path", FOUND)
def test_a_summary_begins_with_the_verb_of_the_help(path: str) -> None:
    command, line = FOUND[path]
    assert line.split()[0] in VERBS
    assert (command.help or "").split()[0] == line.split()[0]


def test_a_dry_run_is_a_plan() -> None:
    """But for `run`, whose plan is that of a file."""
    assert {path for path, command in LEAVES.items() if _flags(command) & FLAGS_OF_PLAN} == {"run"}


def test_what_is_left_over_goes_by_sweep_and_apply() -> None:
    """A branch or a tag that is deleted by its name is no leftover."""
    named = {"staging branch", "staging tag"}
    assert {path for path, command in LEAVES.items() if _flags(command) & FLAGS_OF_SWEEP} == named
    sweeps = {path for path in LEAVES if path.endswith(" sweep")}
    assert sweeps == {f"{wing} sweep" for wing in WINGS} | {"staging lakefs sweep"}
    assert all("--apply" in _flags(LEAVES[path]) for path in sweeps)


@pytest.mark.parametrize("wing", WINGS)
def test_every_wing_has_the_verbs_of_all(wing: str) -> None:
    assert {f"{wing} {verb}" for verb in SHARED} <= LEAVES.keys()


def _flags(command: click.Command) -> set[str]:
    return {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
