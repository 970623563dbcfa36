"""Options for those who have no policy: how blocks are merged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from compaction.blocks.cli.policy.values import LevelsParameter, SortKeyParameter
from compaction.cli.durations import DurationParameter

Command = TypeVar("Command", bound=Callable[..., Any])


def policy_options(command: Command) -> Command:
    """What a policy says of compaction, for commands without one; passed as `options`, None where not given."""

    @functools.wraps(command)
    def wrapped(**rest: Any) -> Any:
        given = [flag for name, flag in _OF_POLICIES.items() if rest[name] not in (None, ())]
        if given and rest["place"].policy is not None:
            raise click.UsageError(f"the policy says that: leave out {given[0]}")
        return command(**rest)

    result: Any = wrapped
    for option in reversed(_POLICY_OPTIONS):
        result = option(result)
    return result  # type: ignore[no-any-return]


_OF_POLICIES: Final = {
    "levels": "--levels",
    "span": "--span",
    "memory": "--memory",
    "sort_key": "--sort-key",
    "columns": "--deduplicate",
    "grace": "--grace",
}
_POLICY_OPTIONS: Final = (
    click.option("--all", "everything", is_flag=True, help="Include blocks that are not due yet."),
    click.option(
        "--levels",
        type=LevelsParameter(),
        metavar="COUNT:AGE,...",
        help="Levels as COUNT:AGE: blocks merge at this count, or at this age. Default: 20:36s,10:12m,10:3h.",
    ),
    click.option("--span", type=DurationParameter(), help="Blocks are merged in windows of this width; default 3h."),
    click.option(
        "--sort-key",
        type=SortKeyParameter(),
        metavar="COLUMN,...",
        help="Sort order of merged blocks. Default: the order of most source bytes, else by time.",
    ),
    click.option("--memory", metavar="BYTES", help="Maximum memory of one merge, such as 512Mi (the default)."),
    click.option(
        "--deduplicate",
        "columns",
        metavar="COLUMN",
        multiple=True,
        help="Keep the last of the rows that are equal in these columns.",
    ),
    click.option("--grace", type=DurationParameter(), help="How long replaced blocks stay readable; default 10m."),
)
