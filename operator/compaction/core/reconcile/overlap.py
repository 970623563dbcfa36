"""Two policies over one store: which of them compacts it, and what keeps the other one from it.

Both would start workers for the same sources, set the same damage aside, and judge each other's files. The older policy
goes on; the younger one plans and starts nothing until the older one is gone or they are apart. Decided from the specs
alone, so it is known before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compaction.api.policy.resource import CompactionPolicy
from compaction.api.policy.store import StoreSpec
from compaction.registry import kind_of


@dataclass(frozen=True, slots=True)
class Claimant:
    """A policy and its store. `created` is epoch seconds."""

    namespace: str
    name: str
    created: float
    store: StoreSpec

    @classmethod
    def of(cls, policy: CompactionPolicy) -> Claimant:
        """Of a policy that exists."""
        meta = policy.metadata
        created = meta.creation_timestamp.timestamp() if meta.creation_timestamp is not None else 0.0
        return cls(meta.namespace, meta.name, created, policy.spec.store)

    @property
    def age(self) -> tuple[float, str, str]:
        """What orders policies: the oldest first; of the same second, by namespace and name."""
        return self.created, self.namespace, self.name

    @property
    def places(self) -> tuple[str, ...]:
        """Where its store lies, in paths of parts between slashes. Who shares a store with it has a place that is the
        same, around or inside one of these; most that have none need not be compared.
        """
        return kind_of(self.store).places(self.store, self.namespace)


def older_owner(policy: Claimant, others: Iterable[Claimant]) -> Claimant | None:
    """The oldest of the policies that are older than this one and compact the same store, or a part of it."""
    older = [one for one in others if one.age < policy.age and share_a_store(policy, one)]
    return min(older, key=lambda one: one.age, default=None)


def said(policy: Claimant, owner: Claimant) -> str:
    """What the younger policy says of it."""
    remedy = kind_of(policy.store).overlap_remedy
    return (
        f"{policy.store.location} is compacted by the older policy {owner.namespace}/{owner.name}: delete one of the "
        f"two, or {remedy}; until then nothing of this one is planned or started"
    )


def share_a_store(one: Claimant, other: Claimant) -> bool:
    """Whether both may select the same source."""
    kind = kind_of(one.store)
    if kind_of(other.store) is not kind:
        return False
    return kind.overlap(one.store, other.store, same_namespace=one.namespace == other.namespace)
