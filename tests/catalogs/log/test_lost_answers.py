"""Requests and answers that are lost, at every call: a write happens once, and its writer learns what became of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.catalogs.errors import CatalogLogUnavailableError, CatalogLogUncertainError
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Transaction, TransactionAnswer
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.port import Renewal, SnapshotOutcome
from support.catalogs.etcd_members import EtcdStore
from support.catalogs.log_writers import Loss, LossyClient
from support.catalogs.logs import at, fill, snapshot, update, versions
from support.timing import examples

NONE, REQUEST, ANSWER, TWICE = Loss.NONE, Loss.REQUEST, Loss.ANSWER, Loss.TWICE


def lossy(store: EtcdStore, *plan: Loss) -> tuple[EtcdUpdateLog, LossyClient]:
    """A log that has begun, and whose next transactions meet these losses."""
    client = LossyClient(store.members.settings(), iter(()))
    log = EtcdUpdateLog(client, store.prefix)
    store.opened.append(log)
    assert not log.append(update(99), at(99))
    client.plan = iter(plan)
    return log, client


@pytest.mark.parametrize("losses", [(ANSWER,), (REQUEST,), (TWICE,), (ANSWER, ANSWER), (REQUEST, ANSWER, REQUEST)])
def test_an_append_is_written_once(etcd_store: EtcdStore, losses: tuple[Loss, ...]) -> None:
    log, client = lossy(etcd_store, *losses)
    assert log.append(update(1), at(1))
    assert client.lost == sum(loss in {ANSWER, REQUEST} for loss in losses)
    assert [event.event for event in log.recover().events] == [update(1)]
    assert log.append(update(2), at(2))


@pytest.mark.parametrize("loss", [ANSWER, REQUEST])
def test_a_lost_race_is_a_lost_race(etcd_store: EtcdStore, loss: Loss) -> None:
    """Another writer has the version: what is lost on the way cannot make it ours."""
    fill(etcd_store.open(), 1)
    log, _ = lossy(etcd_store, loss)
    assert not log.append(update(1, 99), at(1))
    assert [event.event for event in log.recover().events] == [update(1)]


@pytest.mark.parametrize("loss", [ANSWER, REQUEST])
def test_the_other_writer_comes_between(etcd_store: EtcdStore, loss: Loss) -> None:
    """Between the loss and the second sending, another writer appends the same version, or the next."""
    other = etcd_store.open()
    log, client = lossy(etcd_store, loss)
    client.between = lambda: [other.append(update(version, 7), at(version)) for version in (1, 2)]
    assert log.append(update(1), at(1)) is (loss is ANSWER)
    assert versions(log.recover()) == [1, 2]


@pytest.mark.parametrize("loss", [ANSWER, REQUEST])
@pytest.mark.parametrize("last", [1, 3])
def test_a_snapshot_hides_what_happened(etcd_store: EtcdStore, loss: Loss, last: int) -> None:
    """Between the loss and the second sending a snapshot replaces the version: history has it."""
    other = etcd_store.open()
    fill(other, 1)
    log, client = lossy(etcd_store, loss)

    def between() -> None:
        for version in range(2, 2 + last):
            other.append(update(version, 7), at(version))
        other.save_snapshot(snapshot(1 + last), 0)

    client.between = between
    assert log.append(update(2), at(2)) is (loss is ANSWER)
    assert versions(log.recover()) == [1 + last]


def test_what_cannot_be_known_is_not_guessed(etcd_store: EtcdStore) -> None:
    """The snapshot replaced the version, and the history is compacted too."""
    other = etcd_store.open()
    fill(other, 1)
    log, client = lossy(etcd_store, ANSWER)

    def between() -> None:
        other.append(update(3), at(3))
        other.save_snapshot(snapshot(3), 0)
        etcd_store.forget_history()

    client.between = between
    with pytest.raises(CatalogLogUncertainError, match=r"update\.0000000002, and a snapshot has replaced"):
        log.append(update(2), at(2))


@pytest.mark.parametrize("losses", list(itertools.product([NONE, REQUEST, ANSWER, TWICE], repeat=2)))
def test_a_snapshot_is_saved_once(etcd_store: EtcdStore, losses: tuple[Loss, ...]) -> None:
    """The first of these transactions compares the snapshot with the log, the second saves it."""
    fill(etcd_store.open(), 4)
    log, _ = lossy(etcd_store, *losses)
    assert log.save_snapshot(snapshot(3), 5) is SnapshotOutcome.SAVED
    assert [event.event for event in log.recover().events] == [snapshot(3), update(4)]
    assert log.save_snapshot(snapshot(3), 5) is SnapshotOutcome.NOT_NEWER


def test_a_snapshot_whose_answer_is_lost_is_saved_also_under_a_new_coordinator(etcd_store: EtcdStore) -> None:
    """It was saved before the token was claimed."""
    other = etcd_store.open()
    fill(other, 4)
    log, client = lossy(etcd_store, NONE, ANSWER)
    client.between = lambda: other.claim(6)
    assert log.save_snapshot(snapshot(3), 5) is SnapshotOutcome.SAVED


def test_a_snapshot_whose_request_is_lost_is_fenced_under_a_new_coordinator(etcd_store: EtcdStore) -> None:
    other = etcd_store.open()
    fill(other, 4)
    log, client = lossy(etcd_store, NONE, REQUEST)
    client.between = lambda: other.claim(6)
    assert log.save_snapshot(snapshot(3), 5) is SnapshotOutcome.FENCED
    assert versions(log.recover()) == [1, 2, 3, 4]


@pytest.mark.parametrize("loss", [REQUEST, ANSWER, TWICE])
def test_a_claim_is_its_own(etcd_store: EtcdStore, loss: Loss) -> None:
    """Whatever is lost, no other claim has the token, also one that comes between."""
    log, client = lossy(etcd_store, NONE, loss)
    between: list[int] = []
    client.between = lambda: between.append(etcd_store.open().claim(4))
    token = log.claim(4)
    assert between == [] if loss is TWICE else between[0] < token
    assert log.recover().token == token


@pytest.mark.parametrize("loss", [REQUEST, ANSWER])
def test_a_log_begins_once(etcd_store: EtcdStore, loss: Loss) -> None:
    client = LossyClient(etcd_store.members.settings(), iter((loss,)))
    log = EtcdUpdateLog(client, etcd_store.prefix)
    etcd_store.opened.append(log)
    assert log.append(update(1), at(1))
    assert versions(log.recover()) == [1]


@pytest.mark.parametrize("loss", [REQUEST, ANSWER])
def test_a_call_without_any_answer_says_so(etcd_store: EtcdStore, loss: Loss) -> None:
    """The time of a call is over; what was written is there all the same."""
    log, client = lossy(etcd_store)
    fill(log, 1)
    client.plan = itertools.repeat(loss)
    client._clock = itertools.count().__next__
    with pytest.raises(CatalogLogUnavailableError, match=r"did not answer \(ConnectionResetError"):
        log.append(update(2), at(2))
    client.plan = iter(())
    assert versions(log.recover()) == [1, 2][: 1 + (loss is ANSWER)]


@given(plan=st.lists(st.sampled_from(Loss), max_size=60), writers=st.lists(st.integers(0, 2), min_size=1, max_size=15))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_lost_outcomes_are_true(etcd_store: EtcdStore, plan: list[Loss], writers: list[int]) -> None:
    """Three writers in turn, one plan of losses: a version is in the log if, and only if, its writer was answered
    True, and a snapshot is there if its writer was answered Saved.
    """
    with EtcdStore(etcd_store.members) as store:
        losses = iter(plan)
        logs = [lossy(store)[0] for _ in range(3)]
        for log in logs:
            client = log._client
            assert isinstance(client, LossyClient)
            client.plan = losses
        written: list[int] = []
        earliest = 1
        for number, writer in enumerate(writers, 1):
            version = len(written) + 1
            if logs[writer].append(update(version, number), at(version)):
                written.append(number)
            if number % 5 == 0 and written:
                outcome = logs[writer].save_snapshot(snapshot(len(written)), 0)
                earliest = len(written) if outcome is SnapshotOutcome.SAVED else earliest
        assert len(written) == len(writers)
        found = store.open().recover()
        expected = [
            update(version, written[version - 1]) for version in range(earliest + (earliest > 1), len(written) + 1)
        ]
        assert [event.event for event in found.events] == ([snapshot(earliest)] if earliest > 1 else []) + expected


class Silent(GatewayClient):
    """The first appends get no answer in time; with `carries` they happen all the same."""

    times, carries = 2, False

    def transaction(self, what: Transaction, *, within: float | None = None) -> TransactionAnswer:
        if within is not None and self.times:
            self.times -= 1
            if self.carries:
                super().transaction(what, within=within)
            raise CatalogLogUnavailableError(self.name, "no answer")
        return super().transaction(what, within=within)


@pytest.mark.parametrize("carries", [False, True])
def test_an_append_that_takes_long_is_sent_again_with_the_time_of_then(etcd_store: EtcdStore, carries: bool) -> None:
    """Else the version would be active at a time that others hold for complete. What arrived keeps its time."""
    client = Silent(etcd_store.members.settings())
    client.carries = carries
    log = EtcdUpdateLog(client, etcd_store.prefix)
    etcd_store.opened.append(log)
    now = iter((at(30), at(40), at(50)))
    assert log.append(update(1), at(1), renewal=Renewal(1.0, lambda: next(now)))
    (event,) = etcd_store.open().recover().events
    assert event.timestamp == (at(1) if carries else at(40))
