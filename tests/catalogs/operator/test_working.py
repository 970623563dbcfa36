"""The work of rounds, one task at a time: what is found, read, saved and sent, and the reason of every failure."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import Reason
from compaction.catalogs.commands.schema_commands import CreateSchema, CreateSystemSchema
from compaction.catalogs.commands.table_commands import AddColumns
from compaction.catalogs.compaction.observations import (
    Ask,
    Broken,
    Delivered,
    Heard,
    LogRead,
    ReadLog,
    Result,
    Saved,
    SaveSnapshot,
    SendMinimum,
    Task,
)
from compaction.catalogs.compaction.round import history_of
from compaction.catalogs.errors import (
    CatalogLogAccessError,
    CatalogLogFullError,
    CatalogLogLimitError,
    CatalogLogUnavailableError,
    CorruptCatalogLogError,
    ParticipantConfigError,
)
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.model.entries import Snapshot
from compaction.catalogs.operator.finding import ClusterPlaces, EtcdLogs, addresses_of
from compaction.catalogs.operator.working import CatalogWork, Credentials, RoundState, reason_of
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.errors import ApiUnavailableError, ForbiddenError
from compaction.kube.client.tokens import OwnTokens
from compaction.kube.informer.cache import CacheKey
from compaction.storage.errors import SecretMissingError
from support.catalogs.rounds import column, table
from support.cluster.catalog_coordinator import MemoryLogs, NamedParticipants, ObjectsOf, pod
from support.cluster.orders import catalog_object

NOW = hybrid(1_750_000_000_000)
SECRETS = {
    "etcd": {"username": base64.b64encode(b"root").decode()},
    "participants": {"token": base64.b64encode(b"shared\n").decode()},
}


def spec_of(**spec: Any) -> CatalogCompactionSpec:
    return CatalogCompaction.from_object(catalog_object(**spec)).spec


class Desk:
    """Work on one catalog whose pods are `a` and `b`."""

    def __init__(self, **objects: Any) -> None:
        self.objects = ObjectsOf(**({"secrets": SECRETS, "pods": (pod("b"), pod("a"))} | objects))
        self.logs = MemoryLogs()
        self.participants = NamedParticipants(lambda: NOW)
        for name in ("a", "b"):
            self.participants.known[name] = ReferenceParticipant(name, clock=lambda: NOW)
        self.state = RoundState()
        self.leads = True

    def do(self, task: Task) -> Result:
        async def main() -> Result:
            work = CatalogWork(
                ClusterPlaces(self.objects, OwnTokens(self.objects, None)),  # type: ignore[arg-type]
                logs=self.logs,
                participants=self.participants,
                clock=lambda: NOW,
                is_leader=lambda: self.leads,
            )
            return await work.do(CacheKey("ns", "orders"), self.state, task)

        return asyncio.run(main())


def test_participants_are_found_by_their_labels_and_asked() -> None:
    desk = Desk()
    desk.participants.silent.add("b")
    heard = desk.do(Ask(spec_of(), 4))
    assert isinstance(heard, Heard)
    assert (heard.asked, heard.started_at) == (frozenset({"a", "b"}), NOW)
    assert [answer.name for answer in heard.answers] == ["a"]
    assert [item.name for item in heard.unanswered] == ["b"]
    assert desk.objects.asked == ["app=orders"]
    assert [address.url for address in desk.state.addresses] == ["https://10.0.0.1:7800"] * 2


def test_pods_that_cannot_run_are_no_participants() -> None:
    selector = spec_of().participants.selector
    assert selector is not None
    pods = (
        pod("runs"),
        pod("leaves", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("unknown", phase="Unknown"),
        pod("waits", address="", phase="Pending"),
        pod("done", phase="Succeeded"),
        pod("failed", phase="Failed"),
        pod("six", address="fd00::1"),
    )
    found = addresses_of(pods, selector, plain=True)
    assert [(item.name, item.url) for item in found] == [
        ("runs", "http://10.0.0.1:7800"),
        ("leaves", "http://10.0.0.1:7800"),
        ("unknown", "http://10.0.0.1:7800"),
        ("six", "http://[fd00::1]:7800"),
    ]


def test_a_cut_replaces_versions_and_says_how_many_bytes() -> None:
    desk = Desk()
    desk.logs.run(CreateSchema("PUBLIC"), CreateSystemSchema("SYSTEM"))
    desk.logs.run(table("T", "V"))
    for n in range(5):
        desk.logs.run(AddColumns("PUBLIC", "T", (column(f"C{n}"),)))
    read = desk.do(ReadLog(spec_of()))
    assert isinstance(read, LogRead)
    assert (read.history.earliest.version, read.history.latest.version) == (1, 7)
    candidate = read.history.find(6)
    assert candidate is not None
    saved = desk.do(SaveSnapshot(spec_of(), candidate, 1, 4, trim=True))
    assert isinstance(saved, Saved)
    assert (saved.outcome, saved.version, saved.bytes_cut > 0) == (SnapshotOutcome.SAVED, 6, True)
    assert desk.logs.opened_with[0].log == {"username": "root"}
    kept = desk.logs.kept.recover().events
    assert [item.event.version for item in kept] == [6, 7]
    first = kept[0].event
    assert isinstance(first, Snapshot)
    (stored,) = (item for contents in first.schemas for item in contents.tables)
    assert len(stored.versions) == 1, "column sets that no retained version uses are gone"
    assert history_of(kept).latest.version == 7


def test_column_sets_stay_unless_the_round_drops_them() -> None:
    desk = Desk()
    desk.logs.run(CreateSchema("PUBLIC"))
    desk.logs.run(table("T", "V"))
    for n in range(3):
        desk.logs.run(AddColumns("PUBLIC", "T", (column(f"C{n}"),)))
    read = desk.do(ReadLog(spec_of()))
    assert isinstance(read, LogRead)
    candidate = read.history.find(4)
    assert candidate is not None
    assert isinstance(desk.do(SaveSnapshot(spec_of(), candidate, 1, 4)), Saved)
    first = desk.logs.kept.recover().events[0].event
    assert isinstance(first, Snapshot)
    (stored,) = (item for contents in first.schemas for item in contents.tables)
    assert len(stored.versions) == 3


def test_a_log_without_space_is_swept_though_it_takes_no_claim() -> None:
    desk = Desk()
    desk.logs.kept.failure = CatalogLogFullError("etcd", "database space exceeded")
    heard = desk.do(Ask(spec_of(), 4))
    assert isinstance(heard, Heard)
    assert heard.unclaimed is not None
    assert heard.unclaimed.reason is Reason.NO_SPACE
    assert "etcdctl alarm disarm" in heard.unclaimed.message
    assert desk.logs.kept.swept == 1


def test_an_older_token_cuts_nothing() -> None:
    """A coordinator that was stopped, and wakes up after another has claimed the log."""
    desk = Desk()
    for n in range(4):
        desk.logs.run(CreateSchema(f"S{n}"))
    read = desk.do(ReadLog(spec_of()))
    assert isinstance(read, LogRead)
    candidate = read.history.find(3)
    assert candidate is not None
    assert desk.logs.kept.claim(9) == 9
    saved = desk.do(SaveSnapshot(spec_of(), candidate, 1, 8))
    assert saved == Saved(SnapshotOutcome.FENCED, 3)
    assert len(desk.logs.kept.recover().events) == 4


def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    desk = Desk()
    for n in range(4):
        desk.logs.run(CreateSchema(f"S{n}"))
    read = desk.do(ReadLog(spec_of()))
    assert isinstance(read, LogRead)
    candidate = read.history.find(3)
    assert candidate is not None
    desk.leads = False
    for task in (Ask(spec_of(), 4), SaveSnapshot(spec_of(), candidate, 1, 4), SendMinimum(spec_of(), NOW, 4)):
        result = desk.do(task)
        assert isinstance(result, Broken)
        assert result.reason is Reason.FENCED
    assert desk.participants.sent == []
    assert desk.logs.kept.recover().token == 0
    assert len(desk.logs.kept.recover().events) == 4


def test_a_round_claims_the_log_before_it_asks() -> None:
    """A coordinator that was stopped between answers and save is fenced by every round that began since."""
    desk = Desk()
    for n in range(4):
        desk.logs.run(CreateSchema(f"S{n}"))
    desk.logs.kept.claim(50)
    first, second = (desk.do(Ask(spec_of(), 4)) for _ in range(2))
    assert isinstance(first, Heard)
    assert isinstance(second, Heard)
    assert (first.token, second.token) == (51, 52), "what the log has seen counts, whatever Lease and status say"
    read = desk.do(ReadLog(spec_of()))
    assert isinstance(read, LogRead)
    candidate = read.history.find(3)
    assert candidate is not None
    assert desk.do(SaveSnapshot(spec_of(), candidate, 1, first.token)) == Saved(SnapshotOutcome.FENCED, 3)
    saved = desk.do(SaveSnapshot(spec_of(), candidate, 1, second.token))
    assert isinstance(saved, Saved)
    assert saved.outcome is SnapshotOutcome.SAVED


def test_a_dry_run_claims_nothing() -> None:
    desk = Desk()
    heard = desk.do(Ask(spec_of(dryRun=True), 4))
    assert isinstance(heard, Heard)
    assert (heard.token, desk.logs.kept.recover().token) == (4, 0)


def test_participants_are_asked_also_when_the_log_does_not_answer() -> None:
    desk = Desk()
    desk.logs.kept.failure = CatalogLogUnavailableError("etcd", "no endpoint answered")
    heard = desk.do(Ask(spec_of(), 4))
    assert isinstance(heard, Heard)
    assert (heard.asked, heard.token) == (frozenset({"a", "b"}), 4)
    assert heard.unclaimed is not None
    assert heard.unclaimed.reason is Reason.LOG_UNAVAILABLE
    assert "no endpoint answered" in heard.unclaimed.message


def test_the_minimum_goes_to_those_that_were_asked() -> None:
    desk = Desk()
    desk.do(Ask(spec_of(), 4))
    desk.participants.silent.add("b")
    minimum = hybrid(1_749_000_000_000)
    assert desk.do(SendMinimum(spec_of(), minimum, 4)) == Delivered(minimum, (("b", "refused"),))
    assert desk.participants.sent == [(minimum, 4)]


@pytest.mark.parametrize(
    ("objects", "reason", "message"),
    [
        ({"secrets": {}}, Reason.SECRET_MISSING, "Secret etcd: not found in namespace ns: create it"),
        ({"secrets": {**SECRETS, "participants": {}}}, Reason.SECRET_MISSING, "key token of Secret participants"),
        ({"secrets": {**SECRETS, "etcd": {"username": "?"}}}, Reason.SECRET_MISSING, "not base64"),
        ({"failure": ForbiddenError("no", status=403)}, Reason.PERMISSION_DENIED, "may not get secrets"),
        ({"failure": ApiUnavailableError("no answer")}, Reason.PARTICIPANTS_UNKNOWN, "no answer"),
    ],
)
def test_what_cannot_be_read_is_named(objects: dict[str, Any], reason: Reason, message: str) -> None:
    result = Desk(**objects).do(Ask(spec_of(), 4))
    assert isinstance(result, Broken)
    assert result.reason is reason
    assert message in result.message


def test_every_error_of_the_log_has_a_reason() -> None:
    errors = {
        CatalogLogUnavailableError("etcd", "no answer"): Reason.LOG_UNAVAILABLE,
        CatalogLogAccessError("etcd", "no such user"): Reason.PERMISSION_DENIED,
        CatalogLogLimitError(5, 2, "too large"): Reason.SNAPSHOT_REFUSED,
        CatalogLogFullError("etcd", "database space exceeded"): Reason.NO_SPACE,
        CorruptCatalogLogError("/v", "a gap"): Reason.LOG_CORRUPT,
        ParticipantConfigError("twice"): Reason.LOG_UNAVAILABLE,
    }
    assert {error: reason_of(error) for error in errors} == errors
    desk = Desk()
    desk.logs.kept.failure = CorruptCatalogLogError("/v", "a gap")
    result = desk.do(ReadLog(spec_of()))
    assert isinstance(result, Broken)
    assert result.reason is Reason.LOG_CORRUPT
    assert "a gap" in result.message


# What a Secret of a catalog is made into, before anything is connected to.

SPEC = CatalogCompaction.from_object(catalog_object()).spec


@pytest.mark.parametrize("half", ["tls.crt", "tls.key", "username", "password"])
def test_half_of_a_pair_is_named(half: str) -> None:
    with pytest.raises(SecretMissingError) as refusal:
        EtcdLogs().open(SPEC, Credentials({half: "value"}, ""))
    assert f"{half} is: write both or neither" in str(refusal.value)
    assert "value" not in str(refusal.value)


def test_a_certificate_that_is_none_is_named_and_not_shown() -> None:
    with pytest.raises(CatalogLogAccessError) as refusal:
        EtcdLogs().open(SPEC, Credentials({"ca.crt": "PRIVATE"}, ""))
    assert "ca.crt cannot be read" in str(refusal.value)
    assert "PRIVATE" not in str(refusal.value)


def test_without_a_secret_the_log_opens_and_closes() -> None:
    log = EtcdLogs().open(SPEC, Credentials({}, ""))
    log.close()
    assert "secret" not in repr(Credentials({"password": "secret"}, "secret", "secret"))
