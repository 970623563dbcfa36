"""`NAME=VALUE` on the command line."""

from __future__ import annotations

from typing import Any

import click


class PairParameter(click.ParamType[tuple[str, str]]):
    """`name=value`; the first = divides, so a value may hold one."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, sign, text = str(value).partition("=")
        if not sign or not name:
            # The value is not quoted: it may be a secret.
            self.fail("write NAME=VALUE", param, ctx)
        return name, text
