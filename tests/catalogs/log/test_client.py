"""The client of etcd without an etcd: endpoints in turn, what a refusal means, forms of requests and answers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.errors import (
    CatalogLogAccessError,
    CatalogLogCutError,
    CatalogLogError,
    CatalogLogFullError,
    CatalogLogRefusedError,
    CatalogLogSizeError,
    CatalogLogUnavailableError,
)
from compaction.catalogs.log.etcd import wire
from compaction.catalogs.log.etcd.connections import EtcdAnswer
from compaction.catalogs.log.etcd.gateway import GatewayClient, RefusalFate, refusal
from compaction.catalogs.log.etcd.wire import (
    Compare,
    DeleteRange,
    Document,
    Endpoint,
    EtcdSettings,
    Get,
    Put,
    Relation,
    Tls,
    Transaction,
)
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from support.catalogs.etcd_members import PASSWORD, QUICK, USER, Members, etcd_members, nameless, with_users
from support.catalogs.logs import at, fill, until, update, versions, wait_for, watched
from support.clocks import PATIENCE_SECONDS
from tools.servers.etcd import start_etcd

EMPTY = json.dumps({"header": {"revision": "7"}}).encode()
URLS = "http://a:1,http://b:2,http://c:3"


def refused(code: int, message: str, status: int = 400) -> EtcdAnswer:
    return EtcdAnswer(status, json.dumps({"code": code, "message": message}).encode())


class Scripted(GatewayClient):
    """Each request gets the next answer; a clock that is a second later with each reading, pauses that are counted."""

    def __init__(self, *script: EtcdAnswer | Exception, urls: str = URLS, **more: object) -> None:
        self.pauses: list[float] = []
        ticks = map(float, count())
        super().__init__(EtcdSettings.of(urls, **more), clock=ticks.__next__, sleep=self.pauses.append)
        self.script: Iterator[EtcdAnswer | Exception] = iter(script)
        self.asked: list[str] = []

    def _post(self, endpoint: Endpoint, path: str, what: Document) -> EtcdAnswer:
        self.asked.append(endpoint.host)
        found = next(self.script, EtcdAnswer(200, EMPTY))
        if isinstance(found, Exception):
            raise found
        return found


def test_the_endpoint_that_answers_is_asked_again() -> None:
    client = Scripted(ConnectionRefusedError(), ConnectionResetError())
    assert client.range(Get(b"k")).revision == 7
    client.range(Get(b"k"))
    assert client.asked == ["a", "b", "c", "c"]
    assert client.pauses == []


def test_it_pauses_after_each_round_longer_and_longer() -> None:
    client = Scripted(*[ConnectionRefusedError()] * 9)
    client.range(Get(b"k"))
    assert client.asked == list("abcabcabca")
    assert client.pauses == [0.05, 0.1, 0.2]


def test_the_time_of_a_call_ends() -> None:
    client = Scripted(*[TimeoutError()] * 100, call_seconds=6.0)
    with pytest.raises(CatalogLogUnavailableError, match=r"a:1,http://b:2,http://c:3: http://c:3 did not"):
        client.range(Get(b"k"))
    assert client.asked == list("abcabc")


def test_a_transaction_that_was_sent_again_says_so() -> None:
    assert not Scripted().transaction(Transaction((), ())).repeated
    assert Scripted(TimeoutError()).transaction(Transaction((), ())).repeated


@pytest.mark.parametrize("message", ["etcdserver: no leader", "etcdserver: server stopped", "request timed out"])
def test_a_refusal_that_passes_is_tried_with_another(message: str) -> None:
    client = Scripted(refused(14, message, 503))
    client.range(Get(b"k"))
    assert client.asked == ["a", "b"]


def test_a_refusal_that_stays_is_raised_at_once() -> None:
    client = Scripted(refused(3, "etcdserver: request is too large"))
    with pytest.raises(CatalogLogRefusedError, match=r"request is too large \(gRPC code 3\)"):
        client.range(Get(b"k"))
    assert client.asked == ["a"]


def test_a_server_that_is_no_etcd_is_named() -> None:
    with pytest.raises(CatalogLogRefusedError, match="HTTP status 404, '<h1>Not found</h1>'"):
        Scripted(EtcdAnswer(404, b"<h1>Not  found</h1>\n")).range(Get(b"k"))
    with pytest.raises(CatalogLogUnavailableError, match="not one of etcd's JSON gateway"):
        Scripted(EtcdAnswer(200, b"<h1>Hello</h1>")).range(Get(b"k"))


@pytest.mark.parametrize(
    ("answer", "fate", "kind"),
    [
        (refused(16, "etcdserver: invalid auth token", 401), RefusalFate.RENEW_TOKEN, CatalogLogAccessError),
        (refused(3, "etcdserver: revision of auth store is old"), RefusalFate.RENEW_TOKEN, CatalogLogAccessError),
        (refused(7, "etcdserver: permission denied", 403), RefusalFate.GIVE_UP, CatalogLogAccessError),
        (refused(3, "etcdserver: user name is empty"), RefusalFate.GIVE_UP, CatalogLogAccessError),
        (
            refused(11, "etcdserver: mvcc: required revision has been compacted"),
            RefusalFate.GIVE_UP,
            CatalogLogCutError,
        ),
        (
            refused(11, "etcdserver: mvcc: required revision is a future revision"),
            RefusalFate.GIVE_UP,
            CatalogLogRefusedError,
        ),
        (refused(8, "etcdserver: mvcc: database space exceeded", 429), RefusalFate.GIVE_UP, CatalogLogFullError),
        (refused(3, "etcdserver: request is too large"), RefusalFate.GIVE_UP, CatalogLogSizeError),
        (refused(8, "grpc: received message larger than max (3 vs. 2)", 429), RefusalFate.GIVE_UP, CatalogLogSizeError),
        (refused(8, "etcdserver: too many requests", 429), RefusalFate.RETRY, CatalogLogRefusedError),
        (refused(14, "etcdserver: leader changed", 503), RefusalFate.RETRY, CatalogLogRefusedError),
        (EtcdAnswer(502, b"bad gateway"), RefusalFate.RETRY, CatalogLogRefusedError),
    ],
)
def test_what_a_refusal_means(answer: EtcdAnswer, fate: RefusalFate, kind: type[CatalogLogError]) -> None:
    found, error = refusal(answer, "etcd")
    assert (found, type(error)) == (fate, kind)


@given(st.binary(max_size=50), st.integers(100, 599))
def test_any_answer_has_a_meaning(body: bytes, status: int) -> None:
    fate, error = refusal(EtcdAnswer(status, body), "etcd")
    assert isinstance(fate, RefusalFate)
    assert len(str(error)) < 1_500


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h", "http://h:2379"),
        ("https://10.0.0.1:23", "https://10.0.0.1:23"),
        ("https://[::1]:5/", "https://[::1]:5"),
    ],
)
def test_endpoints(url: str, shown: str) -> None:
    assert str(Endpoint.parse(url)) == shown


@pytest.mark.parametrize("url", ["h:1", "ftp://h:1", "http://", "http://h:99999999", "http://h/path", "unix:/x"])
def test_a_wrong_endpoint_is_refused(url: str) -> None:
    with pytest.raises(CatalogLogError, match="https://host:port"):
        Endpoint.parse(url)


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(CatalogLogError, match="the user apart from it") as error:
        EtcdSettings.of("https://user:hunter2@host:1")
    assert "hunter2" not in repr(error.value)


def test_no_endpoint_is_refused() -> None:
    with pytest.raises(CatalogLogError, match="no endpoint is named"):
        EtcdSettings.of(" , ")


def test_forms_of_requests() -> None:
    what = Transaction(
        (Compare(b"k", Relation.LESS, b"\0\1"),), (Put(b"k", b"v"), DeleteRange(b"a", b"b")), (Get(b"k", b"l", 5),)
    )
    assert wire.transaction_request(what) == {
        "compare": [{"key": "aw==", "target": "VALUE", "result": "LESS", "value": "AAE="}],
        "success": [
            {"request_put": {"key": "aw==", "value": "dg=="}},
            {"request_delete_range": {"key": "YQ==", "range_end": "Yg=="}},
        ],
        "failure": [{"request_range": {"key": "aw==", "range_end": "bA==", "limit": 5}}],
    }


def test_a_header_ahead_of_the_events_is_not_believed() -> None:
    """A watch that catches up has events of an older revision than the store's, and more may follow."""
    event = {"kv": {"key": "aw==", "mod_revision": "5", "value": "dg=="}}
    assert wire.changes({"header": {"revision": "90"}, "events": [event]}).revision == 5
    assert wire.changes({"header": {"revision": "90"}}).revision == 90


def test_a_closed_client_says_so() -> None:
    client = Scripted()
    client.close()
    with pytest.raises(CatalogLogUnavailableError, match="the client is closed"):
        client.range(Get(b"k"))


# Certificates, users and tokens; and that a password is nowhere.

PREFIX = "/catalogs/orders"


@dataclass(frozen=True)
class Guarded:
    """An etcd with users, and how its user reaches it."""

    settings: EtcdSettings
    members: Members | None = None
    named: EtcdSettings | None = None
    """The same with a certificate that has a common name."""

    @contextmanager
    def log(self, prefix: str = PREFIX) -> Iterator[EtcdUpdateLog]:
        log = EtcdUpdateLog(GatewayClient(self.settings), prefix, pace=QUICK)
        with closing(log):
            yield log


@pytest.fixture(scope="module")
def tls_and_password(tmp_path_factory: pytest.TempPathFactory, etcd_program: Path) -> Iterator[Guarded]:
    with start_etcd(tmp_path_factory.mktemp("guarded"), etcd_program, sync=False) as running:
        guarded = with_users(nameless(running), PREFIX)
        yield Guarded(guarded, named=replace(guarded, tls=running.tls))


@pytest.fixture
def short_tokens(tmp_path: Path, etcd_program: Path) -> Iterator[Guarded]:
    """Tokens that end after a second without use."""
    with etcd_members(tmp_path, etcd_program, arguments=("--auth-token-ttl=1",)) as running:
        yield Guarded(with_users(running.settings(), PREFIX), running)


def test_tls_and_password_together(tls_and_password: Guarded) -> None:
    with tls_and_password.log() as log:
        collector, _ = watched(log)
        fill(log, 5)
        assert versions(log.recover()) == [1, 2, 3, 4, 5]
        assert wait_for(collector, 5) == ["1", "2", "3", "4", "5"]


def test_tokens_that_ended_are_renewed(short_tokens: Guarded) -> None:
    """The client asks for another one where etcd says that the token is not valid any more."""
    with short_tokens.log() as log:
        fill(log, 1)
        client = log._client
        assert isinstance(client, GatewayClient)
        first = client._token
        deadline = time.monotonic() + PATIENCE_SECONDS
        while client._token == first and time.monotonic() < deadline:
            time.sleep(2.5)
            last = log.recover().version
            assert log.append(update(last + 1), at(last + 1))
        assert client._token not in {"", first}


def test_tokens_are_renewed_after_a_restart_of_etcd(short_tokens: Guarded) -> None:
    """It forgets the tokens that it gave; a watch goes on too."""
    assert short_tokens.members is not None
    with short_tokens.log() as log:
        fill(log, 2)
        collector, _ = watched(log)
        short_tokens.members.members[0].kill()
        short_tokens.members.start()
        fill(log, 4, first=3)
        assert wait_for(collector, 2) == ["3", "4"]


def test_a_wrong_password_is_refused_by_name(tls_and_password: Guarded) -> None:
    wrong = replace(tls_and_password, settings=replace(tls_and_password.settings, password="hunter2-wrong"))
    with (
        pytest.raises(CatalogLogAccessError, match=f"user {USER}: .*check the Secret of the log") as error,
        wrong.log() as log,
    ):
        log.recover()
    assert "hunter2" not in str(error.value)


def test_no_user_is_refused(tls_and_password: Guarded) -> None:
    userless = replace(tls_and_password, settings=replace(tls_and_password.settings, user="", password=""))
    with pytest.raises(CatalogLogAccessError, match="permission denied"), userless.log() as log:
        log.recover()


def test_a_certificate_with_a_common_name_is_refused_by_name(tls_and_password: Guarded) -> None:
    """A rule of the gateway of an etcd that has users."""
    assert tls_and_password.named is not None
    named = replace(tls_and_password, settings=tls_and_password.named)
    with pytest.raises(CatalogLogAccessError, match="CommonName of client"), named.log() as log:
        log.recover()


def test_no_user_without_tls_is_refused(short_tokens: Guarded) -> None:
    userless = replace(short_tokens, settings=replace(short_tokens.settings, user=""))
    with pytest.raises(CatalogLogAccessError, match="user name is empty"), userless.log() as log:
        log.recover()


def test_a_user_sees_the_status(tls_and_password: Guarded) -> None:
    """Figures for metrics: the size of the database beside its quota."""
    with closing(GatewayClient(tls_and_password.settings)) as client:
        (status,) = client.status()
    assert 0 < status.in_use <= status.size < status.quota
    assert status.leader == status.member


def test_another_prefix_is_refused(tls_and_password: Guarded) -> None:
    """The user's role holds for its own catalog."""
    denied = pytest.raises(CatalogLogAccessError, match=r"permission denied.*the user's role")
    with denied, tls_and_password.log("/catalogs/invoices") as log:
        log.recover()


def test_a_watch_without_permission_fails(tls_and_password: Guarded) -> None:
    errors: list[Exception] = []
    with tls_and_password.log("/catalogs/invoices") as log:
        log.watch(1, print, errors.append)
        until(lambda: bool(errors), "the watch fails")
    assert isinstance(errors[0], CatalogLogAccessError)


def test_a_password_is_nowhere(tls_and_password: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a representation, nor in an error with its causes, nor in a log."""
    caplog.set_level(logging.DEBUG)
    gone = replace(tls_and_password.settings, endpoints=(replace(tls_and_password.settings.endpoints[0], port=1),))
    unreachable = replace(tls_and_password, settings=replace(gone, call_seconds=0.1))
    with pytest.raises(CatalogLogError, match="did not answer") as error, unreachable.log() as log:
        log.recover()
    assert PASSWORD not in repr(tls_and_password.settings)
    chain: BaseException | None = error.value
    while chain is not None:
        assert PASSWORD not in f"{chain!r} {chain}"
        chain = chain.__cause__ or chain.__context__
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    ca = tmp_path / "ca.crt"
    if content is not None:
        ca.write_text(content)
    with pytest.raises(CatalogLogAccessError, match=r"ca\.crt cannot be read"):
        GatewayClient(EtcdSettings.of("https://127.0.0.1:1", tls=Tls(ca)))
