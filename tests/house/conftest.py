"""The sources of the package, read once for all house rules."""

from __future__ import annotations

import pytest

from house.sources import BESIDE, EXAMPLES, PACKAGE, Module, read_beside, read_modules


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """All modules of the package. A rule that finds nothing to look at has checked nothing: an empty list is a
    failure.
    """
    found = read_modules()
    assert len(found) > 40, f"only {len(found)} modules under {PACKAGE}: the house rules would check nothing"
    return found


@pytest.fixture(scope="session")
def examples() -> list[Module]:
    """All modules of the examples."""
    found = read_beside(*EXAMPLES)
    assert len(found) > 10, f"only {len(found)} modules: the house rules would check nothing"
    return found


@pytest.fixture(scope="session")
def beside() -> list[Module]:
    """All modules of packages in no wheel: examples, tools, demonstrations."""
    found = read_beside(*BESIDE)
    assert len(found) > 40, f"only {len(found)} modules: the house rules would check nothing"
    return found
