"""Where the code of block stores is."""

from __future__ import annotations

from typing import Final

from compaction.kinds.doors import Command, Door, Doors

BLOCK_DOORS: Final = Doors(
    rooms=(
        "compaction.kinds.blocks",
        "compaction.stores.blocks",
        "compaction.rewrite.blocks",
        "compaction.cli.blocks",
        "compaction.local.demo.blocks",
        "compaction.ingest.blocks",
    ),
    adapter=Door("compaction.stores.blocks.adapter:open_adapter"),
    rewriters={"BlockRewrite": Door("compaction.rewrite.blocks.rewriter:open_rewriter")},
    tables=Door("compaction.cli.blocks.run_tables"),
    open_jobs=Door("compaction.cli.blocks.others:open_jobs_of"),
    commands=(
        Command(
            "blocks",
            "Look into block stores; register, compact, verify, clean up.",
            Door("compaction.cli.blocks.commands:group"),
        ),
    ),
    demo=("blocks", Door("compaction.local.demo.blocks.run:show")),
)
