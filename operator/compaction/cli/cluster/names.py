"""Names of objects in the cluster, for completion: one short question, and no answer is none, not an error."""

from __future__ import annotations

import asyncio
from typing import Final

from compaction.cli.cluster.access import connect
from compaction.cli.cluster.flags import CommandTarget
from compaction.cli.cluster.object_names import ObjectKind
from compaction.errors import CompactionError, ForbiddenError, NotFoundError
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, NAMESPACES, ApiClient
from compaction.kube.client.resources import CATALOG_COMPACTIONS, Resource

SECONDS: Final = 2.0
"""Shell completion gives up after this time."""
_KINDS: Final = {
    "policies": COMPACTION_POLICIES,
    "jobs": COMPACTION_JOBS,
    "catalogs": CATALOG_COMPACTIONS,
    "namespaces": NAMESPACES,
}


def names_of(what: str, target: CommandTarget) -> list[str]:
    """The names of `what` (words of `policies`, `jobs`, `catalogs`, `namespaces`), sorted within each kind; a catalog's
    is `ccat/NAME`, which names it whatever else has that name.
    """
    try:
        return asyncio.run(_ask([_KINDS[word] for word in what.split()], target))
    except CompactionError:
        return []  # completion has no place for an error; the command itself will say it


async def _ask(kinds: list[Resource], target: CommandTarget) -> list[str]:
    found: list[str] = []
    connection = connect(target)
    async with ApiClient(connection, deadline=SECONDS) as client:
        for kind in kinds:
            scope = connection.namespace if kind is not NAMESPACES and not target.all_namespaces else None
            try:
                listed = await client.list(kind, namespace=scope)
            except (ForbiddenError, NotFoundError):
                continue
            prefix = f"{ObjectKind.CATALOG}/" if kind is CATALOG_COMPACTIONS else ""
            found += sorted(f"{prefix}{body['metadata']['name']}" for body in listed.items)
    return found
