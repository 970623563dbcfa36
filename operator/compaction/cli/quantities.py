"""Quantities of bytes on the command line, written as in a policy."""

from __future__ import annotations

from typing import Any

import click

from compaction.api.text.values import Quantity


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
