"""Durations on the command line: as in a policy, or a plain number of seconds."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from compaction.api.text.values import Duration

_SECONDS: Final = re.compile(r"[0-9]{1,32}([.][0-9]{1,32})?")


class DurationParameter(click.ParamType[Duration]):
    """`30s`, `12m`, `90d`, as in a policy; `600` is 600 seconds.

    `least`: the shortest that is accepted, in seconds; `whole`: whole seconds only.
    """

    name = "duration"

    def __init__(self, *, least: float = 0.0, whole: bool = False) -> None:
        self.least = least
        self.whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Duration:
        if isinstance(value, Duration):
            return value
        written = str(value)
        try:
            found = Duration(_of_seconds(written) if _SECONDS.fullmatch(written) else written)
        except ValueError as error:
            self.fail(f"{written!r}: {error}, or seconds as a number", param, ctx)
        if found < self.least:
            self.fail(f"{written!r} is too short: the shortest is {self.least:g}s", param, ctx)
        if self.whole and not found.is_integer():
            self.fail(f"{written!r} is not a whole number of seconds", param, ctx)
        return found


def _of_seconds(number: str) -> str:
    """A plain number of seconds as a duration, which has at most six digits behind the point."""
    rounded = f"{float(number):.6f}".rstrip("0").rstrip(".")
    return f"{rounded}s"
