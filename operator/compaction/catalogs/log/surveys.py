"""The numbers of an update log at one revision (docs/design/catalogs.md#keys-and-values-of-the-log)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compaction.catalogs.errors import CorruptCatalogLogError
from compaction.catalogs.log.etcd.port import KeyValue, Page
from compaction.catalogs.log.layout import PRODUCT, Keys, Stored, shown, unpack


@dataclass(frozen=True, slots=True)
class Survey:
    """What the log says of itself. `asked`: the update or snapshot of the version that was asked for."""

    version: int
    activation: int
    snapshot: int
    token: int
    asked: Stored | None
    changed: int
    """The revision of the last append or snapshot."""
    snapshot_changed: int
    """The revision of the last snapshot."""
    revision: int
    """The store's."""


def surveyed(keys: Keys, found: Sequence[Page]) -> Survey | None:
    """Read what `requests.survey` found; None when the prefix holds no log.

    Raises CorruptCatalogLogError for the log of another product, or a part of a log.
    """
    product, version, snapshot, token, asked = (page.pairs[0] if page.pairs else None for page in found)
    if product is None:
        for one in (version, snapshot, token):
            if one is not None:
                raise CorruptCatalogLogError(shown(one.key), f"exists, and {shown(keys.product)} does not")
        return None
    if product.value != PRODUCT:
        raise CorruptCatalogLogError(shown(keys.product), f"the log of another product: {product.value[:40]!a}")
    last, cut = _needed(version, keys.version), _needed(snapshot, keys.snapshot)
    number, active = keys.numbers(keys.version, last.value, 2)
    return Survey(
        version=number,
        activation=active,
        snapshot=keys.numbers(keys.snapshot, cut.value)[0],
        token=keys.numbers(keys.token, _needed(token, keys.token).value)[0],
        asked=None if asked is None else unpack(keys, asked.key, asked.value),
        changed=max(last.revision, cut.revision),
        snapshot_changed=cut.revision,
        revision=found[0].revision,
    )


def _needed(found: KeyValue | None, key: bytes) -> KeyValue:
    if found is None:
        raise CorruptCatalogLogError(shown(key), "is missing")
    return found
