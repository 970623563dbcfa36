"""The doors of the kinds that ship, for what must start at once: the command line reads them, and no models."""

from __future__ import annotations

from typing import Final

from compaction.blocks.doors import BLOCK_DOORS
from compaction.core.doors import CommandDoor, Doors
from compaction.segments.doors import SEGMENT_DOORS
from compaction.staging.doors import STAGING_DOORS

SHIPPED: Final[tuple[Doors, ...]] = (SEGMENT_DOORS, BLOCK_DOORS, STAGING_DOORS)


def commands() -> tuple[CommandDoor, ...]:
    """The groups of commands of all kinds."""
    return tuple(command for doors in SHIPPED for command in doors.commands)
