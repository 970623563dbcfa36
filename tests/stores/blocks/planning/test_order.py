"""Tenants take turns; names and ids are the same for the same sources."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.errors import BlockIdError
from compaction.blocks.planning.offers import output_id, ulid_milliseconds
from compaction.blocks.planning.queue import BlockQueue, ReadyLines
from stores.blocks.planning.queues import block, ids, queue_of, ready, rules_of


def tenants(queue: BlockQueue, **more: object) -> str:
    """Whose the ready batches are, in order."""
    return "".join(batch.group.key[0].tenant for batch in queue.ready(1e6, **more))  # type: ignore[arg-type]


def noisy(*counts: tuple[str, int]) -> BlockQueue:
    """So many full batches of each tenant, the first tenant's first."""
    names = [tenant for tenant, count in counts for _ in range(2 * count)]
    return queue_of(*(block(n, f"{tenant}0") for n, tenant in enumerate(names)), rules=rules_of(2))


class TestTurns:
    def test_a_noisy_tenant_waits_for_itself(self) -> None:
        """A thousand batches of A came first: B and C have their jobs at once (docs/design/blocks.md#levels)."""
        assert tenants(noisy(("A", 1000), ("B", 1), ("C", 2)), most=7) == "ABCACAA"

    def test_jobs_that_exist_count(self) -> None:
        """With room for one job at a time, turns alone would give all of it to the oldest."""
        queue = noisy(("A", 3), ("B", 2))
        assert tenants(queue, most=1, existing={(0, "A"): 900}) == "B"
        assert tenants(queue, existing={(0, "A"): 1}) == "BABAA"
        assert tenants(queue, existing={(1, "A"): 900}) == "ABABA", "another level's"

    def test_a_turn_is_not_paid_for_at_another_level(self) -> None:
        queue = queue_of(
            *(block(n, "A0") for n in range(4)), *(block(n, "A0", 1) for n in (4, 5)),
            *(block(n, "B0", 1) for n in (6, 7)), rules=rules_of(2, 2),
        )  # fmt: skip
        assert ready(queue) == ["A0-L0{0,1}", "A0-L0{2,3}", "A0-L1{4,5}", "B0-L1{6,7}"]

    @given(owners=st.lists(st.sampled_from("AAAABC"), max_size=60), most=st.integers(0, 30), data=st.data())
    def test_turns_are_fair_and_complete(self, owners: list[str], most: int, data: st.DataObject) -> None:
        queue = queue_of(*(block(n, f"{owner}{n % 2}") for n, owner in enumerate(owners)), rules=rules_of(2))
        existing = {(0, tenant): data.draw(st.integers(0, 3)) for tenant in "ABC"}
        every = queue.ready(1e6, existing=existing)
        assert queue.ready(1e6, most=most, existing=existing) == every[:most]
        assert len(every) == queue.ready_size == len({id(item) for item in every})
        left = {t: sum(b.group.key[0].tenant == t for b in every) for t in "ABC"}
        had = {t: existing[0, t] for t in "ABC"}
        for batch in every:
            tenant = batch.group.key[0].tenant
            assert all(had[tenant] <= had[t] for t in "ABC" if left[t]), "who has fewest is next"
            had[tenant] += 1
            left[tenant] -= 1
        for tenant in "ABC":
            line = [batch.ready for batch in every if batch.group.key[0].tenant == tenant]
            assert line == sorted(line), "first come, first served"  # type: ignore[type-var]

    def test_lines_forget_what_is_gone(self) -> None:
        queue = noisy(("A", 50), ("B", 1))
        for n in range(0, 80, 2):
            queue.remove([str(n), str(n + 1)])
            assert len(queue.ready(1e6, most=1)) == 1
        assert (queue.ready_size, tenants(queue, most=3)) == (11, "ABA")
        lines: ReadyLines = queue._lines
        assert sum(len(line.batches) for line in lines._levels[0].values()) == 11


ULIDS = st.integers(0, 2**128 - 1).map(
    lambda value: "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[value >> s & 31] for s in range(125, -1, -5))
)


class TestOutputIds:
    @given(sources=st.lists(ULIDS, min_size=1, max_size=20, unique=True), seed=st.integers(0, 9))
    def test_the_same_sources_make_the_same_id_in_whatever_order(self, sources: list[str], seed: int) -> None:
        shuffled = list(sources)
        random.Random(seed).shuffle(shuffled)
        made = output_id(sources, tenant="t", shard=1, level=1)
        assert made == output_id(shuffled, tenant="t", shard=1, level=1)
        assert ulid_milliseconds(made) == min(map(ulid_milliseconds, sources)), "as old as the oldest"
        assert made not in sources

    def test_everything_that_makes_another_output_makes_another_id(self) -> None:
        one, two = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"
        made = {
            output_id([one, two], tenant="t", shard=1, level=1),
            output_id([one], tenant="t", shard=1, level=1),
            output_id([one, two], tenant="t1", shard=1, level=1),
            output_id([one, two], tenant="t", shard=11, level=1),
            output_id([one, two], tenant="t", shard=1, level=2),
            output_id([one, two], tenant="t", shard=1, level=1, part=1),
            output_id([one, two], tenant="t", shard=1, level=1, attempt="job.1"),
        }
        assert len(made) == 7

    def test_time(self) -> None:
        assert ulid_milliseconds("01ARZ3NDEKTSV4RRFFQ69G5FAV") == 1469922850259

    @pytest.mark.parametrize("wrong", ["", "01ARZ3NDEKTSV4RRFFQ69G5FA", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "i" * 26])
    def test_what_is_no_ulid_is_named(self, wrong: str) -> None:
        with pytest.raises(BlockIdError, match="26 characters"):
            ulid_milliseconds(wrong)

    @pytest.mark.parametrize("sources", [[], ["01ARZ3NDEKTSV4RRFFQ69G5FAV"] * 2])
    def test_an_output_of_nothing_or_of_one_block_twice(self, sources: list[str]) -> None:
        with pytest.raises(BlockIdError, match="each once"):
            output_id(sources, tenant="t", shard=1, level=1)


def test_a_late_block_takes_its_place() -> None:
    """Its writer was slow to be heard of, but it came before the others."""
    queue = queue_of(*(block(n) for n in (1, 3, 4)))
    assert [ids(batch) for batch in queue.ready(10)] == [("1", "3", "4")]
    queue.push(block(2))
    assert [ids(batch) for batch in queue.ready(10)] == [("1", "2", "3")]
