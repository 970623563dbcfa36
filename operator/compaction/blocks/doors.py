"""The import paths of the code of block stores."""

from __future__ import annotations

from typing import Final

from compaction.core.doors import CommandDoor, Door, Doors

BLOCK_DOORS: Final = Doors(
    adapter=Door("compaction.blocks.adapter:open_adapter"),
    rewriters={"BlockRewrite": Door("compaction.blocks.rewriting.rewriter:open_rewriter")},
    tables=Door("compaction.blocks.cli.run_tables:TABLES"),
    open_jobs=Door("compaction.blocks.cli.run_tables:open_jobs_of"),
    commands=(
        CommandDoor(
            "blocks",
            "Inspect block stores; register, plan, compact, verify and clean up.",
            Door("compaction.blocks.cli.commands:group"),
        ),
    ),
)
