"""Policies from YAML (see `objects`)."""

from __future__ import annotations

from compaction.api.manifests.objects import kinds_in, objects_of
from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.api.policy.resource import CompactionPolicy
from compaction.errors import InvalidManifestError


def load_policies(text: str, *, source: str) -> list[CompactionPolicy]:
    """Every CompactionPolicy in a text, in order; other kinds are passed over. `source` names the file.

    Raises:
        InvalidManifestError: not YAML, no policy in it, or a policy the API server would refuse; the message has one
            line per problem, each with the field and what to write instead.
    """
    policies = objects_of(text, CompactionPolicy, POLICY_KIND, source=source)
    if not policies:
        raise InvalidManifestError(
            f"{source}: no {POLICY_KIND} in it ({kinds_in(text, source)}): it needs apiVersion: {API_VERSION} and "
            f"kind: {POLICY_KIND}"
        )
    return policies
