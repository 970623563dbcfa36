"""Kopf is known in two places (docs/adr/0301-kopf-beside-our-own-watch.md)."""

from __future__ import annotations

from house.sources import Module


def test_two_modules_import_kopf(modules: list[Module]) -> None:
    importers = [module.name.rpartition(".")[2] for module in modules if "kopf" in module.imports]
    assert sorted(importers) == ["handlers", "term"]
