"""Certificates, users and tokens; and that a password is nowhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compaction.catalogs.errors import CatalogLogAccessError, CatalogLogError
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from support.catalogs.etcd_members import QUICK, Members, etcd_members
from support.catalogs.etcd_users import PASSWORD, USER, nameless, with_users
from support.catalogs.logs import at, fill, until, update, versions, wait_for, watched
from tools.servers.etcd import start_etcd

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
        deadline = time.monotonic() + 60
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
