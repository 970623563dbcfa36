"""A snapshot that no request takes."""

from __future__ import annotations

from dataclasses import replace

from compaction.catalogs.model.descriptors import Schema, SchemaContents
from compaction.catalogs.model.entries import Snapshot


def large_snapshot(base: Snapshot) -> Snapshot:
    """The same version with a schema whose name is two million characters long."""
    return replace(base, schemas=(SchemaContents(Schema(1, "X" * 2_000_000, 1), (), (), ()),))
