"""`compactor drill`: proofs on a user's own cluster: of tenants, and of the kinds of stores that have some."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click

from compaction.cli.lazy import LazyGroup
from compaction.wings import SHIPPED


class Drills(LazyGroup):
    """One command per drill."""

    commands_by_name: Mapping[str, tuple[str, str]] = MappingProxyType(
        {doors.drill.name: (doors.drill.door.name, doors.drill.help) for doors in SHIPPED if doors.drill is not None}
        | {
            "tenants": (
                "compaction.cli.local.drill_tenants:tenants",
                "Try what a tenant might, and see it refused.",
            )
        }
    )


@click.group(cls=Drills)
def group() -> None:
    """Prove on your own cluster what workers and tenants cannot do."""
