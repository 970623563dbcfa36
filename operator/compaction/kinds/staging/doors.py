"""Where the code of staging areas is."""

from __future__ import annotations

from typing import Final

from compaction.kinds.doors import Command, Door, Doors

STAGING_DOORS: Final = Doors(
    rooms=(
        "compaction.kinds.staging",
        "compaction.stores.staging",
        "compaction.rewrite.metaranges",
        "compaction.cli.staging",
        "compaction.ingest.staging",
        "compaction.local.demo.staging",
    ),
    adapter=Door("compaction.stores.staging.adapter:open_adapter"),
    rewriters={"MetarangeRewrite": Door("compaction.rewrite.metaranges.rewriter:open_rewriter")},
    tables=Door("compaction.cli.staging.run_tables"),
    commands=(
        Command(
            "staging",
            "Work with staging areas: branches, records, commits; compact, verify.",
            Door("compaction.cli.staging.commands:group"),
        ),
    ),
    demo=("staging", Door("compaction.local.demo.staging.run:show")),
)
