"""How options of `compactor blocks` are written: levels and sort keys."""

from __future__ import annotations

from typing import Any

import click

from compaction.api.text.values import Duration
from compaction.cli.durations import DurationParameter


class LevelsParameter(click.ParamType[tuple[tuple[int, Duration], ...]]):
    """`20:36s,10:12m`: of each level the number of blocks, and the age at which fewer are merged too."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, Duration], ...]:
        if isinstance(value, tuple):
            return value
        levels = []
        for level in str(value).split(","):
            most, colon, age = level.partition(":")
            if not (colon and most.isascii() and most.isdecimal() and len(most) < 10):
                self.fail("write COUNT:AGE for each level, such as 20:36s,10:12m,10:3h", param, ctx)
            levels.append((int(most), DurationParameter().convert(age, param, ctx)))
        return tuple(levels)


class SortKeyParameter(click.ParamType[tuple[str, ...]]):
    """`series,ts`: names of columns, each once, the first sorts first."""

    name = "columns"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(str(value).split(","))
        if not all(names) or len(set(names)) != len(names):
            self.fail("write names of columns, each once, such as series,ts", param, ctx)
        return names
