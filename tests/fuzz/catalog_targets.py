"""Targets of catalogs: values of the update log in both protocols, and payloads of the objects in them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import PROTOCOL_1, decode_exact, encode
from compaction.catalogs.codec.primitives import TypeId, decode_text, encode_text
from compaction.catalogs.errors import CatalogValueError, InapplicableEntryError
from compaction.catalogs.model.applying import restored, with_entries
from compaction.catalogs.model.entries import Event, Snapshot, VersionedUpdate
from fuzz.target import Target, check_error, refusing
from support.catalogs.events import RELEASES

NAME: Final = "catalog.update.7"
_NEW: Final = RELEASES["3.2.0"]
_OLD: Final = RELEASES["3.0.0"]
_ENTRIES: Final = (
    TypeId.NEW_TABLE,
    TypeId.NEW_INDEX,
    TypeId.NEW_ZONE,
    TypeId.NEW_SYS_VIEW,
    TypeId.NEW_COLUMN,
    TypeId.ALTER_COLUMN,
    TypeId.DROP_COLUMN,
    TypeId.RENAME_TABLE,
)
_SEEDS: Final = (
    encode(_NEW[TypeId.VERSIONED_UPDATE]),
    encode(_OLD[TypeId.VERSIONED_UPDATE], PROTOCOL_1),
    encode(_NEW[TypeId.SNAPSHOT]),
    encode(_OLD[TypeId.SNAPSHOT], PROTOCOL_1),
    encode(VersionedUpdate(8, 0, tuple(_NEW[kind] for kind in (*_ENTRIES, TypeId.ALTER_TABLE_PROPERTIES)))),
    encode(VersionedUpdate(8, 0, tuple(_OLD[kind] for kind in _ENTRIES)), PROTOCOL_1),
)
_BASE: Final = restored(_NEW[TypeId.SNAPSHOT])
_TOKENS: Final = (
    b"\xff" * 9 + b"\x01",
    b"\x80\x80\x80\x80\x08",
    b"\xff\xff\xff\xff\x07",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\x1d\x00\x03",
    b"\x1d\x00\x04",
    b"\x00\x08\xff\x7f\xff\xff\xff\x7f",
    b"\x11\x00\x03",
)


def _value(data: bytes, _: Path) -> None:
    """What is taken is written again as it was, shown, and written by the newest serializers with the same meaning."""
    with refusing(NAME):
        found = decode_exact(data, NAME)
        assert found.encode() == data
        _apply(found.event)
        shown = canonical.text(canonical.event(found.event))
        try:
            newest = encode(found.event, found.protocol)
        except CatalogValueError as error:
            check_error(error, names="index")
            return
        again = decode_exact(newest, NAME)
        assert again.encode() == newest
        if data[0] != PROTOCOL_1:
            assert canonical.text(canonical.event(again.event)) == shown


def _apply(event: Event) -> None:
    """A snapshot becomes a catalog or is damage; an update applies to a catalog that has the objects of the seeds."""
    try:
        if isinstance(event, Snapshot):
            version = restored(event)
            assert canonical.text(canonical.event(restored(version.snapshot()).snapshot())) == canonical.text(
                canonical.event(version.snapshot())
            )
        else:
            canonical.fingerprint(with_entries(_BASE, event.entries, 1 << 20))
    except InapplicableEntryError as error:
        check_error(error, names="catalog version")


def _text(data: bytes, _: Path) -> None:
    try:
        text = decode_text(data)
    except ValueError:
        return
    assert decode_text(encode_text(text)) == text


CATALOG_TARGETS: Final = (
    Target("catalog-value", _value, _SEEDS, _TOKENS),
    # An update of protocol 2 by its entries alone: mutations reach them more often.
    Target(
        "catalog-entries",
        lambda data, directory: _value(_SEEDS[0][:8] + data, directory),
        tuple(seed[8:] for seed in (_SEEDS[0], _SEEDS[4])),
        _TOKENS,
    ),
    Target("catalog-text", _text, (b"", b"abc", encode_text("a\x00\U0001f600\ud800é")), _TOKENS),
)
