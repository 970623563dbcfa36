"""The pause of the garbage collector leaves it as it was, whatever happens in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from compaction.planning.collector import collector_paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_runs_again_afterwards_also_after_an_error() -> None:
    seen: list[bool] = []

    @collector_paused()
    def fail() -> None:
        seen.append(gc.isenabled())
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (seen, gc.isenabled()) == ([False], True)


def test_the_outer_pause_ends_it() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_who_runs_without_it_goes_on_without_it() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
