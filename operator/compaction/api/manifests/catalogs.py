"""Catalogs from YAML (see `objects`), for a machine without Kubernetes."""

from __future__ import annotations

from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.manifests.objects import objects_of
from compaction.api.names import CATALOG_KIND
from compaction.errors import InvalidManifestError


def load_catalogs(text: str, *, source: str) -> list[CatalogCompaction]:
    """Every CatalogCompaction in a text, in order; other kinds are passed over. `source` names the file.

    Raises:
        InvalidManifestError: not YAML, or a catalog that the API server would refuse, or whose participants only a
            cluster can find; the message has the field and what to write instead.
    """
    catalogs = objects_of(text, CatalogCompaction, CATALOG_KIND, source=source)
    for one in catalogs:
        where = f"{source}: {CATALOG_KIND} {one.metadata.name}: spec.participants"
        if one.spec.participants.service_account_token is not None:
            raise InvalidManifestError(
                f"{where}.serviceAccountToken: an account needs a cluster: write the shared secret of the participants "
                "into a Secret, and name it under spec.participants.token"
            )
        if one.spec.participants.selector is not None:
            raise InvalidManifestError(
                f"{where}.selector: labels of pods need a cluster: name each participant with its address under "
                "spec.participants.urls"
            )
    return catalogs
