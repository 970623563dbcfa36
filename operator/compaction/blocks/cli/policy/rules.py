"""The rules by which blocks are planned: those of a policy, or the defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.blocks.planning.rules import BlockRules

if TYPE_CHECKING:
    from compaction.api.policy.resource import CompactionPolicy


def rules_of(policy: CompactionPolicy | None) -> BlockRules:
    """What the policy says; the defaults of blockStore without one."""
    store = policy.spec.store.block_store if policy is not None else None
    if policy is None or store is None:
        return BlockRules()
    # Whoever has no policy waits for no import of what reads one.
    from compaction.blocks import adapter

    return adapter.rules_of(store, max_bytes_per_job=int(policy.spec.limits.max_bytes_per_job))
