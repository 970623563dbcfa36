"""The policy under which a block store is compacted by hand: that of a file, or one made of the command's options."""

from __future__ import annotations

from typing import Any, Final

import click
import yaml

from compaction.api.enums import Approval
from compaction.api.manifests.policies import load_policies
from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.api.policy.block_store import BlockStoreReference, IndexReference
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.values import Duration
from compaction.blocks.cli.options import StorePlace
from compaction.blocks.cli.policy.file import secrets_of_connection
from compaction.errors import InvalidManifestError
from compaction.storage.secrets import Secrets

POLICY: Final = "blocks"
INDEX_SECRET: Final = "index"
OPTIONS_SECRET: Final = "store"
AT_ONCE: Final = "1ms"
"""The age at which everything that waits is due."""


def secrets_of_place(place: StorePlace) -> Secrets:
    """The values at hand, under the names that the policy has for them."""
    if place.policy is not None and place.policy.spec.store.block_store is not None:
        return secrets_of_connection(place.connection, place.policy.spec.store.block_store.reference)
    index = IndexReference(secret_name=INDEX_SECRET)
    made = BlockStoreReference(url=place.uri, index=index, credentials_secret_name=OPTIONS_SECRET)
    return secrets_of_connection(place.connection, made)


def policy_of_place(place: StorePlace, options: dict[str, Any], *, jobs: int = 1) -> CompactionPolicy:
    """The policy of the place, or one made of options; run by hand, so no plan waits for approval.

    Raises click.UsageError: options that no policy can have.
    """
    policy = place.policy or _made(place, options)
    spec = policy.spec
    store = spec.store.block_store
    assert store is not None, "the place is that of a block store"
    if options["everything"]:
        levels = tuple(level.model_copy(update={"max_age": Duration(AT_ONCE)}) for level in store.levels)
        store = store.model_copy(update={"levels": levels})
    changed = {
        "store": spec.store.model_copy(update={"block_store": store}),
        "workers": spec.workers.model_copy(update={"slots": jobs}),
        "limits": spec.limits.model_copy(update={"max_concurrent_jobs": jobs}),
        "approval": Approval.AUTO,
    }
    return policy.model_copy(update={"spec": spec.model_copy(update=changed)})


def _made(place: StorePlace, options: dict[str, Any]) -> CompactionPolicy:
    store: dict[str, Any] = {"url": place.uri, "index": {"secretName": INDEX_SECRET}}
    if place.connection.options:
        store["credentialsSecretName"] = OPTIONS_SECRET
    if options["levels"] is not None:
        store["levels"] = [{"maxBlocks": most, "maxAge": age.text} for most, age in options["levels"]]
    if options["span"] is not None:
        store["span"] = options["span"].text
    if options["memory"] is not None:
        store["mergeMemory"] = options["memory"]
    if options["sort_key"] is not None:
        store["sortKey"] = list(options["sort_key"])
    if options["columns"]:
        store["deduplicate"] = {"columns": list(options["columns"])}
    spec: dict[str, Any] = {"store": {"blockStore": store}}
    if options["grace"] is not None:
        spec["cleanup"] = {"delay": options["grace"].text}
    document = {"apiVersion": API_VERSION, "kind": POLICY_KIND, "metadata": {"name": POLICY}, "spec": spec}
    try:
        (policy,) = load_policies(yaml.safe_dump(document), source="the options")
    except InvalidManifestError as error:
        raise click.UsageError(str(error)) from error
    return policy
