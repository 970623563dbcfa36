"""Where the code of segment logs is."""

from __future__ import annotations

from typing import Final

from compaction.kinds.doors import Command, Door, Doors

SEGMENT_DOORS: Final = Doors(
    rooms=(
        "compaction.kinds.segments",
        "compaction.stores.segments",
        "compaction.rewrite.segments",
        "compaction.cli.segments",
        "compaction.local.demo.segments",
        "compaction.drill",
    ),
    adapter=Door("compaction.stores.segments.adapter:open_adapter"),
    rewriters={"SegmentRewrite": Door("compaction.rewrite.segments.rewriter:open_rewriter")},
    tables=Door("compaction.cli.segments.run_tables"),
    commands=(
        Command(
            "segments",
            "Look into segment logs; plan, compact and recover them.",
            Door("compaction.cli.segments.commands:group"),
        ),
    ),
    demo=("logs", Door("compaction.local.demo.segments.run:show")),
    preloaded=(Door("compaction.rewrite.segments.task"),),
    drill=Command(
        "fencing",
        "Let a worker sleep through its lease, and see its commit refused.",
        Door("compaction.cli.segments.drill:fencing"),
    ),
)
