"""Two operators: one takes over in the middle of the other's round, and one that wakes up too late cuts nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from compaction.catalogs.model.descriptors import later
from support.catalogs.etcd_members import Members
from support.catalogs.participants import ParticipantProcess
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.orders import NEVER, Orders
from support.faults.proxies import HoldingProxy, TransactionMatch, claim_of, snapshot_of, token_of
from support.processes.operators import OperatorFleet

pytestmark = pytest.mark.apiserver

LEADERSHIP_LOST = {70, 75}


@pytest.fixture
def proxy(etcd: Members) -> Iterator[HoldingProxy]:
    (member,) = etcd.members
    with HoldingProxy((member.endpoint.host, member.endpoint.port)) as running:
        yield running


def led_by(catalog: Orders) -> str:
    (lease,) = catalog.cluster.list("lease", fields="metadata.name=compaction-coordinator") or [{"spec": {}}]
    return str(lease["spec"].get("holderIdentity") or "")


def has_passed(one: ParticipantProcess, time: int) -> bool:
    """Whether its low watermark is later."""
    return int(one.report()["lowWatermark"]) > time


def test_the_next_leader_begins_the_lost_round_again(
    operators: OperatorFleet, catalog: Orders, proxy: HoldingProxy
) -> None:
    """Nothing but a term begins a round here."""
    catalog.await_ready(past=later(catalog.versions[8], 3_000))
    held = proxy.hold(snapshot_of(catalog.prefix, 7))
    first = operators.start()
    eventually(lambda: led_by(catalog) == first.identity, "the first replica to lead")
    second = operators.start()
    catalog.apply(endpoints=[proxy.endpoint], **NEVER)
    assert held.caught.wait(PATIENCE_SECONDS), catalog.status()
    first.kill()
    status = catalog.await_cut(7)
    assert (status["coordinator"], status["round"]["trigger"]) == (second.identity, "NewTerm")
    assert status["fencingToken"] > token_of(catalog.prefix, held.body)
    assert status["versionsCut"] == 6
    held.released.set()
    assert held.answered.wait(PATIENCE_SECONDS)
    assert not held.succeeded, "the dead leader's request arrives, late"
    assert catalog.history() == [7, 8]


@pytest.mark.parametrize("moment", [claim_of, snapshot_of], ids=["claim", "snapshot"])
def test_a_coordinator_that_wakes_up_after_another_has_cut_cuts_nothing(
    moment: Callable[..., TransactionMatch], operators: OperatorFleet, catalog: Orders, proxy: HoldingProxy
) -> None:
    """It was stopped with version 11 decided; then a participant began to need version 9. The coordinator after it
    cuts to version 8, and only the token stands between the first one and what the participant needs.
    """
    a, b = catalog.participants.values()
    first = operators.start()
    eventually(lambda: led_by(catalog) == first.identity, "the first replica to lead")
    second = operators.start()
    catalog.apply(endpoints=[proxy.endpoint])
    catalog.await_cut(7)
    begun = a.act("begin")
    assert catalog.grow(4) == 12
    catalog.await_pin("Transaction", "a", earliest=7)
    past = catalog.versions[12]
    catalog.until("the coordinator's watermark to pass", lambda item: item["lowWatermark"]["value"] > past)
    for item in (a, b):
        eventually(partial(has_passed, item, past), f"the watermark of {item.name} to pass")

    held = proxy.hold(moment(catalog.prefix) if moment is claim_of else moment(catalog.prefix, 11))
    a.act("finish", timestamp=begun)
    assert held.caught.wait(PATIENCE_SECONDS), catalog.status()
    first.process.send_signal(signal.SIGSTOP)
    b.act("start-rebalance", zoneId=catalog.zone_id, minimum=catalog.versions[9])
    status = catalog.await_cut(8)
    assert status["coordinator"] == second.identity
    # A token that was not claimed may be the next one's: the late claim compares with the one before.
    assert status["fencingToken"] >= token_of(catalog.prefix, held.body) + (moment is snapshot_of)

    held.released.set()
    assert held.answered.wait(PATIENCE_SECONDS)
    assert not held.succeeded
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(PATIENCE_SECONDS) in LEADERSHIP_LOST
    assert catalog.history() == [8, 9, 10, 11, 12]
    status = catalog.await_pin("Rebalance", "b", earliest=8)
    assert status["coordinator"] == second.identity
    b.act("end-rebalance", zoneId=catalog.zone_id)
    assert catalog.await_cut(11)["versionsCut"] == 10
