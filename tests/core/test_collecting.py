"""The pause of the garbage collector leaves it as it was, whatever happens in it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from compaction.core.collecting import collector_paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """Nothing is frozen: what the process of the tests has frozen would be taken for somebody else's."""
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.enable()
    if frozen:
        gc.freeze()


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


def test_many_objects_are_old_at_once_and_garbage_among_them_is_still_found() -> None:
    class Ring:
        def __init__(self) -> None:
            self.me = self

    gc.collect()
    with collector_paused():
        made = [[number] for number in range(100_000)]
        rings = [weakref.ref(Ring()) for _ in range(3)]
        frozen = gc.get_freeze_count()
    assert (len(made), frozen, gc.get_freeze_count()) == (100_000, 0, 0)
    assert gc.get_count()[0] < 50_000
    gc.collect()
    assert [ring() for ring in rings] == [None, None, None]


def test_what_somebody_else_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with collector_paused():
            made = [[number] for number in range(100_000)]
        # Some of them have ended meanwhile, by any thread; an end of the pause that unfroze would leave none.
        assert gc.get_freeze_count() > before // 2 > 0
        assert made
    finally:
        gc.unfreeze()
