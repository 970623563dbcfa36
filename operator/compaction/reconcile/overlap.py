"""Two policies over one store: which of them compacts it, and what keeps the other one from it.

Both would start workers for the same sources, set the same damage aside, and judge each other's files. The older policy
goes on; the younger one plans and starts nothing until the older one is gone or they are apart. Decided from the specs
alone, so it is known before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from compaction.api.block_store_spec import BlockStore
from compaction.api.policy import CompactionPolicy
from compaction.api.store_spec import SegmentLogsStore, StoreSpec
from compaction.planning.candidates import plain_path, relative_to
from compaction.planning.glob_overlap import Selection, overlap

_PAIRS_KEPT = 4096


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
        if (logs := self.store.segment_logs) is not None:
            return (f"logs:{plain_path(logs.root)}".rstrip("/"),)
        if (blocks := self.store.block_store) is not None:
            index = f"index:{self.namespace}:{blocks.index.secret_name}:{blocks.index.key}"
            return f"blocks:{blocks.url}".rstrip("/"), index
        return ()


def older_owner(policy: Claimant, others: Iterable[Claimant]) -> Claimant | None:
    """The oldest of the policies that are older than this one and compact the same store, or a part of it."""
    older = [one for one in others if one.age < policy.age and share_a_store(policy, one)]
    return min(older, key=lambda one: one.age, default=None)


def said(policy: Claimant, owner: Claimant) -> str:
    """What the younger policy says of it."""
    remedy = "make root, include and exclude of the two disjoint" if policy.store.segment_logs else "correct the store"
    return (
        f"{policy.store.location} is compacted by the older policy {owner.namespace}/{owner.name}: delete one of the "
        f"two, or {remedy}; until then nothing of this one is planned or started"
    )


def share_a_store(one: Claimant, other: Claimant) -> bool:
    """Whether both may select the same log, or the same block."""
    logs, blocks = one.store.segment_logs, one.store.block_store
    if logs is not None and other.store.segment_logs is not None:
        return _same_logs(logs, other.store.segment_logs)
    if blocks is not None and other.store.block_store is not None:
        return _same_blocks(blocks, other.store.block_store, same_namespace=one.namespace == other.namespace)
    return False


def _same_logs(one: SegmentLogsStore, other: SegmentLogsStore) -> bool:
    """The operator reads both where it runs, so the same path is the same directory whatever volumes workers mount."""
    inside, outside = one, other
    below = relative_to(outside.root, inside.root)
    if below is None:
        inside, outside = other, one
        below = relative_to(outside.root, inside.root)
    if below is None:
        return False
    return _overlap(outside.include, outside.exclude, inside.include, inside.exclude, below)


@lru_cache(maxsize=_PAIRS_KEPT)
def _overlap(
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    inner_include: tuple[str, ...],
    inner_exclude: tuple[str, ...],
    below: str,
) -> bool:
    names = below.split("/") if below else []
    return overlap(Selection.of(include, exclude), Selection.of(inner_include, inner_exclude, below=names))


def _same_blocks(one: BlockStore, other: BlockStore, *, same_namespace: bool) -> bool:
    """The same index, or one place inside the other. Secrets are of a namespace: in two of them the same URL with
    credentials may be of two servers, and what an index does not know the store's own identity keeps apart.
    """
    if same_namespace and one.index == other.index:
        return True
    places = sorted(f"{url.rstrip('/')}/" for url in (one.url, other.url))
    if not places[1].startswith(places[0]):
        return False
    without = one.credentials_secret_name is None and other.credentials_secret_name is None
    return same_namespace or without or one.url.startswith("file://")
