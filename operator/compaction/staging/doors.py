"""The import paths of the code of staging areas."""

from __future__ import annotations

from typing import Final

from compaction.core.doors import CommandDoor, Door, Doors

STAGING_DOORS: Final = Doors(
    adapter=Door("compaction.staging.adapter:open_adapter"),
    rewriters={"MetarangeRewrite": Door("compaction.staging.rewriting.rewriter:open_rewriter")},
    tables=Door("compaction.staging.cli.run_tables:TABLES"),
    commands=(
        CommandDoor(
            "staging",
            "Work with staging areas: branches, records, commits; compact, verify.",
            Door("compaction.staging.cli.commands:group"),
        ),
    ),
)
