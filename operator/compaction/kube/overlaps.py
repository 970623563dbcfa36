"""The policies that are known, and which of them share a store: kept up to date by each change of a policy."""

from __future__ import annotations

from compaction.api.policy import CompactionPolicy
from compaction.kube.cache import ObjectKey
from compaction.reconcile.overlap import Claimant, older_owner, said, share_a_store


class Overlaps:
    """Owned by the controller. A change of a spec costs one comparison with each other policy; a question one with each
    policy that shares the store.
    """

    def __init__(self) -> None:
        self._claimants: dict[ObjectKey, Claimant] = {}
        self._versions: dict[ObjectKey, tuple[str, int]] = {}
        self._neighbours: dict[ObjectKey, set[ObjectKey]] = {}

    def note(self, key: ObjectKey, policy: CompactionPolicy | None) -> frozenset[ObjectKey]:
        """Take what a policy is now (None: gone, or not valid); returns the others for which that changes something."""
        version = None if policy is None else (policy.metadata.uid, policy.metadata.generation)
        if version == self._versions.get(key):
            return frozenset()
        before = self._neighbours.pop(key, set())
        for other in before:
            self._neighbours[other].discard(key)
        self._claimants.pop(key, None)
        self._versions.pop(key, None)
        if policy is None or version is None:
            return frozenset(before)
        mine = Claimant.of(policy)
        after = {other for other, claimant in self._claimants.items() if share_a_store(mine, claimant)}
        for other in after:
            self._neighbours[other].add(key)
        self._claimants[key], self._versions[key], self._neighbours[key] = mine, version, after
        return frozenset(before | after)

    def held_by(self, key: ObjectKey) -> str:
        """What keeps the policy from its store: an older one, in words; "" when nothing does."""
        mine = self._claimants.get(key)
        if mine is None:
            return ""
        owner = older_owner(mine, [self._claimants[other] for other in self._neighbours[key]])
        return said(mine, owner) if owner is not None else ""
