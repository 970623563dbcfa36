"""The entry points of the code of segment logs."""

from __future__ import annotations

from typing import Final

from compaction.core.doors import CommandDoor, Door, Doors

SEGMENT_DOORS: Final = Doors(
    adapter=Door("compaction.segments.adapter:open_adapter"),
    rewriters={"SegmentRewrite": Door("compaction.segments.rewriting.rewriter:open_rewriter")},
    tables=Door("compaction.segments.cli.run_tables:TABLES"),
    commands=(
        CommandDoor(
            "segments",
            "Inspect segment logs; plan, compact, verify and sweep them.",
            Door("compaction.segments.cli.commands:group"),
        ),
    ),
    preloaded=(Door("compaction.segments.rewriting.task"),),
    drill=CommandDoor(
        "fencing",
        "Let a worker sleep through its lease, and see its commit refused.",
        Door("compaction.segments.cli.drill:fencing"),
    ),
)
