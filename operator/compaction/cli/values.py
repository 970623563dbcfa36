"""Values on the command line: durations and quantities as in a policy, and the file of a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.text.quantities import Duration, Quantity
from compaction.errors import InvalidManifestError

if TYPE_CHECKING:
    from compaction.api.policy.configuration import OperatorConfiguration

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


# The file of `--config`, of the operator and of `run`.


class ConfigurationFile(click.ParamType["OperatorConfiguration"]):
    """The file of `--config`. What is wrong in it is wrong usage, and stands in the message with its field."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OperatorConfiguration:
        """Its content."""
        from compaction.api.manifests import configuration_of
        from compaction.api.policy.configuration import OperatorConfiguration

        if isinstance(value, OperatorConfiguration):
            return value
        try:
            return configuration_of(Path(value).read_text(encoding="utf-8"), str(value))
        except OSError as error:
            self.fail(f"{value}: {error.strerror}: correct --config, or mount the file", param, ctx)
        except (UnicodeDecodeError, InvalidManifestError) as error:
            self.fail(str(error), param, ctx)
