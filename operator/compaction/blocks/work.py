"""The targets of a block store, and a planned job in its words.

A target is a batch, `<tenant>/<shard>/L<level>/<its first id in order>`: no other batch has that block, so jobs of one
key run beside one another, and the parts that a Faulty job is split into take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.api.text.formatting import plural


@dataclass(frozen=True, slots=True)
class BlockWork:
    """A planned job: `sources` ascending, all of one tenant and shard; their outputs are of `output_level`. A source
    may be of a lower level than `level`: it has skipped some.
    """

    tenant: str
    shard: int
    level: int
    sources: tuple[str, ...]

    @property
    def output_level(self) -> int:
        """The level of what comes out."""
        return self.level + 1


def work_of(target: str, level: int, sources: tuple[str, ...]) -> BlockWork:
    """What a job of a block store does."""
    tenant, shard, _, _ = target.rsplit("/", 3)
    return BlockWork(tenant=tenant, shard=int(shard), level=level, sources=sources)


def target_name(tenant: str, shard: int, level: int, first: str) -> str:
    """The name of a target."""
    return f"{tenant}/{shard}/L{level}/{first}"


def tenant_of_target(target: str) -> str:
    """The tenant of a target; "" for a name in another form."""
    parts = target.rsplit("/", 3)
    return parts[0] if len(parts) == 4 else ""


def format_merge(sources: int, outputs: int) -> str:
    """What a job did with blocks: `20 blocks merged into 1`; nothing comes of those without rows."""
    blocks = plural(sources, "block")
    return f"{blocks} merged into {outputs}" if outputs else f"{blocks} without rows dropped"
