"""`compactor drill`: proofs on a user's own cluster, of the kinds of stores that have some."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click

from compaction.cli.lazy import LazyGroup
from compaction.kinds.commands import SHIPPED


class Drills(LazyGroup):
    """One command per drill."""

    commands_by_name: Mapping[str, tuple[str, str]] = MappingProxyType(
        {doors.drill.name: (doors.drill.door.name, doors.drill.help) for doors in SHIPPED if doors.drill is not None}
    )


@click.group(cls=Drills)
def group() -> None:
    """Prove on your own cluster that a revoked worker cannot commit."""
