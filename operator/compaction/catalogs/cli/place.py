"""The place of a catalog: the options that commands on an update log share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog

Command = TypeVar("Command", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, path_type=Path)

_OPTIONS = (
    click.option(
        "--etcd",
        metavar="URLS",
        envvar="COMPACTION_CATALOG_ETCD",
        help="Members of etcd, https://host:port, separated by commas; default: COMPACTION_CATALOG_ETCD.",
    ),
    click.option(
        "--prefix",
        envvar="COMPACTION_CATALOG_PREFIX",
        help="Prefix of the catalog's keys, such as /catalogs/orders; default: COMPACTION_CATALOG_PREFIX.",
    ),
    click.option("--ca", type=_FILE, help="Certificates of the authorities to trust, PEM."),
    click.option("--cert", "certificate", type=_FILE, help="Client certificate, PEM."),
    click.option("--key", type=_FILE, help="Key of the client certificate, PEM."),
    click.option("--user", default="", help="User of etcd; the password is read from --password-file."),
    click.option(
        "--password-file",
        type=_FILE,
        envvar="COMPACTION_CATALOG_PASSWORD_FILE",
        help="File with the user's password; default: COMPACTION_CATALOG_PASSWORD_FILE.",
    ),
)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """One catalog in etcd."""

    settings: EtcdSettings
    prefix: str

    @contextmanager
    def opened(self) -> Iterator[EtcdUpdateLog]:
        """Its log, closed at the end. Raises CatalogLogError."""
        with self.client() as client, closing(EtcdUpdateLog(client, self.prefix)) as log:
            yield log

    @contextmanager
    def client(self) -> Iterator[GatewayClient]:
        """The client alone, closed at the end."""
        with closing(GatewayClient(self.settings)) as client:
            yield client


def log_options(command: Command) -> Command:
    """The options that say where the log is, passed to the command as `place: LogPlace`."""
    return _log_options(command, required=True)


def followed_log_options(command: Command) -> Command:
    """As `log_options`; `place` is None where neither --etcd nor --prefix is given."""
    return _log_options(command, required=False)


def _log_options(command: Command, *, required: bool) -> Command:
    @functools.wraps(command)
    def run(
        *args: Any,
        etcd: str | None,
        prefix: str | None,
        ca: Path | None,
        certificate: Path | None,
        key: Path | None,
        user: str,
        password_file: Path | None,
        **rest: Any,
    ) -> Any:
        if not required and not etcd and not prefix:
            return command(*args, place=None, **rest)
        for option, value in (("--etcd", etcd), ("--prefix", prefix)):
            if not value:
                raise click.UsageError(f"Missing option '{option}': the catalog is in etcd, below a prefix.")
        password = "" if password_file is None else password_file.read_text(encoding="utf-8").rstrip("\r\n")
        settings = EtcdSettings.of(str(etcd), tls=Tls(ca, certificate, key), user=user, password=password)
        return command(*args, place=LogPlace(settings, str(prefix)), **rest)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]
