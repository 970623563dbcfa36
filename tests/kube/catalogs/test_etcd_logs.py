"""What a Secret of a catalog is made into, before anything is connected to."""

from __future__ import annotations

import pytest

from compaction.api.catalog.catalog import CatalogCompaction
from compaction.catalogs.errors import CatalogLogAccessError
from compaction.catalogs.operator.finding import EtcdLogs
from compaction.catalogs.operator.working import Credentials
from compaction.storage.errors import SecretMissingError
from support.cluster.catalog_manifests import catalog_object

SPEC = CatalogCompaction.from_object(catalog_object()).spec


@pytest.mark.parametrize("half", ["tls.crt", "tls.key", "username", "password"])
def test_half_of_a_pair_is_named(half: str) -> None:
    with pytest.raises(SecretMissingError) as refusal:
        EtcdLogs().open(SPEC, Credentials({half: "value"}, ""))
    assert f"{half} is: write both or neither" in str(refusal.value)
    assert "value" not in str(refusal.value)


def test_a_certificate_that_is_none_is_named_and_not_shown() -> None:
    with pytest.raises(CatalogLogAccessError) as refusal:
        EtcdLogs().open(SPEC, Credentials({"ca.crt": "PRIVATE"}, ""))
    assert "ca.crt cannot be read" in str(refusal.value)
    assert "PRIVATE" not in str(refusal.value)


def test_without_a_secret_the_log_opens_and_closes() -> None:
    log = EtcdLogs().open(SPEC, Credentials({}, ""))
    log.close()
    assert "secret" not in repr(Credentials({"password": "secret"}, "secret", "secret"))
