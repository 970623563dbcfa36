"""What lives is told from what blocks say of each other: after any history, readers find the rows they saw before."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from compaction.blocks.rebuild import lineage
from compaction.blocks.rebuild.lineage import LineageVerdict, Made, Relative, decide
from stores.blocks.rebuild.model import StoreModel

WORLDS = 150
STEPS = 60


def _found(world: StoreModel, verdict: LineageVerdict) -> Counter[int]:
    assert verdict.live | verdict.dead | verdict.unused == world.objects.keys()
    assert len(verdict.live) + len(verdict.dead) + len(verdict.unused) == len(world.objects)
    return Counter(row for block in verdict.live for row in world.objects[block].rows)


def test_no_row_is_lost_or_comes_twice_at_any_moment_of_any_history() -> None:
    """Attempts that die at any step and go on as zombies, batches that are planned anew, deletions in any order that
    the sweeper allows, also half confirmed ones.
    """
    for seed in range(WORLDS):
        world = StoreModel(Random(seed), ending=False)
        for step in range(STEPS):
            world.step()
            verdict = decide(world.relatives())
            assert _found(world, verdict) == world.rows(), f"world {seed}, step {step}"
            assert verdict.doubts == ()


def test_what_expired_or_was_dropped_may_come_back_and_nothing_is_lost_without_a_word() -> None:
    doubts = 0
    for seed in range(WORLDS):
        world = StoreModel(Random(seed), ending=True)
        for step in range(STEPS):
            world.step()
            verdict = decide(world.relatives())
            found, before = _found(world, verdict), world.rows()
            more = {row for row in found if found[row] > max(before[row], row in world.lost)}
            assert more == set(), f"world {seed}, step {step}"
            assert verdict.doubts or not before - found, f"world {seed}, step {step}"
            doubts += bool(verdict.doubts)
    assert doubts < WORLDS * STEPS // 500


def _written(*names: str) -> list[Relative]:
    return [Relative(name, 0, None) for name in names]


def _made(
    name: str, sources: str, *, of: str = "", token: int = 1, older: str = "", level: int = 1, told: bool = True
) -> Relative:
    """Output `name` of the set `of` (names of all parts; itself by default) from `sources`."""
    outputs = tuple((of or name).split())
    ancestors = tuple(map(hash, older.split()))
    part, parts = outputs.index(name), len(outputs)
    job = "job of " + sources
    return Relative(
        name, level, Made(job, token, part, parts, tuple(sources.split()), outputs if told else (), ancestors, 0.0)
    )


CASES = {
    "nothing was compacted": (_written("a", "b"), "a b"),
    "uploaded, committed or not: the sources are there": ([*_written("a", "b"), _made("o", "a b")], "a b"),
    "the sweep has begun": ([*_written("b"), _made("o", "a b")], "o"),
    "the sweep is over": ([_made("o", "a b"), *_written("c")], "o c"),
    "an upload that never ended": ([*_written("a", "b"), _made("o", "a b", of="o p")], "a b"),
    "one that never ended, and a source that is gone: it expired": ([*_written("b"), _made("o", "a b", of="o p")], "b"),
    "the other part expired": ([_made("o", "a b", of="o p")], "o"),
    "the other part was replaced": ([_made("o", "a b", of="o p"), _made("t", "p", older="a b", level=2)], "o t"),
    "the other part was replaced twice": (
        [_made("o", "a b", of="o p"), _made("u", "t", older="p a b", level=3)], "o u",
    ),
    "a chain, nothing deleted": (
        [*_written("a", "b"), _made("o", "a b"), _made("t", "o", older="a b", level=2)], "o",
    ),
    "who was made into others lived, though they never did": (
        [*_written("a", "b"), _made("o", "a b"), _made("t", "o q", of="t v", older="a b", level=2)], "o",
    ),
    "a chain whose middle is gone": ([_made("t", "o q", older="a b c", level=2), *_written("d")], "t d"),
    "two attempts, both complete: the later one": (
        [_made("o", "a b"), _made("p", "a b", token=2)], "p",
    ),
    "two attempts, one of which became a source": (
        [_made("o", "a b"), _made("p", "a b", token=2), _made("t", "o", older="a b", level=2)], "o",
    ),
    "two attempts, one complete": ([_made("o", "a b"), _made("p", "a b", of="p q", token=2)], "o"),
    "planned anew without one of them": (
        [_made("o", "a b c"), _made("p", "a b", token=2), *_written("c")], "p c",
    ),
    "planned anew in two": ([_made("o", "a b"), _made("p", "a", token=2), _made("q", "b", token=2)], "p q"),
    "planned anew in two, and compacted on": (
        [_made("o", "a b"), _made("q", "b"), _made("t", "p c", older="a", level=2)], "q t",
    ),
    "what a dead attempt made of a block whose successor is gone": (
        [_made("o", "a b"), _made("t", "p c", older="a b", level=2)], "t",
    ),
    "an output that does not tell the ids of the others": (
        [_made("o", "a b", of="o p", told=False), _made("t", "p c", older="a b", level=2)], "o t",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    blocks, live = CASES[case]
    for order in (blocks, blocks[::-1]):
        verdict = decide(order)
        assert verdict.live == set(live.split())
        assert verdict.doubts == ()


def test_of_equals_the_last_upload_is_taken() -> None:
    """Tokens of different jobs say nothing about each other; what failed is followed by what did not."""
    whole = _made("o", "a b", token=7)
    halves = [_made("p", "a"), _made("q", "b")]
    for late in (1.0, -1.0):
        blocks = [whole, *(h._replace(made=h.made._replace(modified=late)) for h in halves if h.made)]
        assert decide(blocks).live == ({"p", "q"} if late > 0 else {"o"})


def test_a_doubt_is_told() -> None:
    """Either a expired, or c did, or one of both was replaced by somebody whose output is gone: nobody knows."""
    verdict = decide([_made("o", "a b"), _made("p", "b c", token=2)])
    assert len(verdict.live) == 1
    (doubt,) = verdict.doubts
    assert "not used: " in doubt
    assert "sources a are gone" in doubt or "sources c are gone" in doubt


def test_a_contradiction_is_told() -> None:
    """A block that was replaced twice: no index of ours does that. The later attempt is believed."""
    verdict = decide(
        [_made("o", "a"), _made("t", "o", older="a", level=2), _made("p", "a", token=9), _made("u", "p", level=2)]
    )
    assert verdict.live == {"p"}
    assert len(verdict.doubts) == 1


def test_a_large_puzzle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty batches, each with three attempts, and one that had planned across all of them."""
    monkeypatch.setattr(lineage, "STEPS", 500)
    blocks = [_made(f"o{batch}.{token}", f"s{batch}", token=token) for batch in range(20) for token in (1, 2, 3)]
    across = _made("across", " ".join(f"s{batch}" for batch in range(20)) + " other")
    verdict = decide([*blocks, _made("x", "other", token=2), across])
    assert verdict.doubts == ()
    rows = sorted(block.split(".")[0] for block in verdict.live)
    assert rows in (["across"], sorted([*(f"o{batch}" for batch in range(20)), "x"]))
