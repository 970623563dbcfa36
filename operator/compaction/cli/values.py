"""Durations and quantities on the command line, written as in a policy."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from compaction.api.text.quantities import Duration, Quantity

# Durations on the command line: as in a policy, or a plain number of seconds.

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
        text = written
        if _SECONDS.fullmatch(written):
            # A duration has at most six digits behind the point.
            text = f"{float(written):.6f}".rstrip("0").rstrip(".") + "s"
        try:
            found = Duration(text)
        except ValueError as error:
            self.fail(f"{written!r}: {error}, or seconds as a number", param, ctx)
        if found < self.least:
            self.fail(f"{written!r} is too short: the shortest is {self.least:g}s", param, ctx)
        if self.whole and not found.is_integer():
            self.fail(f"{written!r} is not a whole number of seconds", param, ctx)
        return found


# Quantities of bytes on the command line, written as in a policy.


class BytesParameter(click.ParamType[int]):
    """`64M`, `1Gi`, `5000000`; more than 0."""

    name = "quantity"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes as a number."""
        try:
            found = int(Quantity(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not found:
            self.fail("must be more than 0, such as 50M", param, ctx)
        return found
