"""Options that select a staging area; secrets come from the environment and from files only.

A staging area is the URL of its key-value store and the name of a repository in it. Where the objects are says the
record of the repository; how they are reached say the options of the object store.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from compaction.cli.places import (
    OPTIONS_VARIABLE,
    PATIENCE,
    STORE_OPTIONS,
    Command,
    check_database,
    is_given,
    options_of,
    place_options,
    policy_options,
    refuse_password,
)
from compaction.staging.errors import NoStagingAreaError
from compaction.staging.kv.port import TABLE
from compaction.storage.opened import explaining

if TYPE_CHECKING:
    from compaction.api.policy.staging_area import StagingAreaSpec
    from compaction.staging.flows.area import Area
    from compaction.staging.store import StagingConnection, StagingStore


# `NAME=VALUE` on the command line.


class PairParameter(click.ParamType[tuple[str, str]]):
    """`name=value`; the first = divides, so a value may hold one."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, sign, text = str(value).partition("=")
        if not sign or not name:
            # The value is not quoted: it may be a secret.
            self.fail("write NAME=VALUE", param, ctx)
        return name, text


SHORT: Final = 16
"""Digits of an id in a table; a reference may have fewer."""
KV_VARIABLE: Final = "COMPACTION_KV_URL"
REPOSITORY_VARIABLE: Final = "COMPACTION_REPOSITORY"
_SECRET_WORDS: Final = ("secret", "token", "password", "account_key", "sas", "credential", "service_account")


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """The place of a staging area. `repository`: "" when the command names none. `may_be_new`: it may begin a store.
    `spec`: that of the policy which named the place; None when options did.
    """

    connection: StagingConnection
    repository: str = ""
    may_be_new: bool = False
    spec: StagingAreaSpec | None = None

    @contextmanager
    def open(self) -> Iterator[StagingStore]:
        """The store, closed at the end, which writes down what was counted.

        Raises:
            NoStagingAreaError: there is no such file, and the command must not begin one.
            DatabaseUrlError, KeyValueArgumentError
        """
        self.check()
        with explaining(self.connection.address()), self.open_unchecked() as store:
            yield store

    @contextmanager
    def open_unchecked(self, clock: Callable[[], float] | None = None) -> Iterator[StagingStore]:
        """The same, for callers that `check` before they first use it. `clock`: seconds since 1970."""
        from compaction.staging.store import StagingStore

        store = StagingStore.open(self.connection, clock=clock or time.time, patience=PATIENCE)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def area(self) -> Iterator[Area]:
        """The repository, in a store that is closed at the end. Raises as `open`, and as `StagingStore.area`."""
        self.check()
        with ExitStack() as stack:
            with explaining(self.connection.address()):
                store = stack.enter_context(self.open_unchecked())
                area = store.area(self.repository)
            stack.enter_context(explaining(self.connection.address(area.repository.namespace)))
            yield area

    def check(self) -> None:
        """A mistyped file must not become an empty store. Raises NoStagingAreaError."""
        check_database(
            self.connection.kv_url,
            may_be_new=self.may_be_new,
            absent=NoStagingAreaError,
            remedy="there is no key-value store here: name one that exists, or begin one by creating a repository "
            "(`compactor staging repo NAME NAMESPACE_URL`)",
        )


def staging_options(
    *, repository: bool = True, required: bool = True, policy: bool = False
) -> Callable[[Command], Command]:
    """The options that name a staging area, passed to the command as `place: StagingPlace`. `repository`: one of them
    is --repo, which is `required` or not. `policy`: a policy may name all of it instead.
    """

    def place_of(
        kv: str | None,
        table: str,
        store_options: Path | None,
        store_option: Sequence[tuple[str, str]],
        repo: str | None = None,
    ) -> StagingPlace:
        if repository and required and not repo:
            raise click.UsageError(f"which repository? Give --repo NAME, or set {REPOSITORY_VARIABLE}")
        return StagingPlace(_connection(kv, table, store_options, store_option), repo or "")

    options = (*_OPTIONS, *((_REPOSITORY,) if repository else ()), *(_POLICY if policy else ()))
    return place_options(options, place_of, place_of_policy, what="repository")


_REPOSITORY: Final = click.option(
    "--repo",
    metavar="NAME",
    envvar=REPOSITORY_VARIABLE,
    help=f"The repository; default: {REPOSITORY_VARIABLE}.",
)
_POLICY: Final = policy_options("store and repository")
_OPTIONS: Final = (
    click.option(
        "--kv",
        metavar="URL",
        envvar=KV_VARIABLE,
        help=f"The key-value store: sqlite:///FILE, or postgresql://HOST/DATABASE; with a password only in "
        f"{KV_VARIABLE}, which is the default.",
    ),
    click.option("--table", metavar="NAME", default=TABLE, show_default=True, help="Its table."),
    STORE_OPTIONS,
    click.option(
        "--option",
        "store_option",
        metavar="NAME=VALUE",
        type=PairParameter(),
        multiple=True,
        help="One option of the object store that is no secret, such as endpoint=http://localhost:9000.",
    ),
)


def committer_option(command: Command) -> Command:
    """`--committer`, which is never empty."""
    option: Any = click.option(
        "--committer",
        metavar="NAME",
        default=_user,
        show_default="the name of the user",
        help="The committer.",
    )
    return option(command)  # type: ignore[no-any-return]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # In a container the user id often has no entry in the password file.
        return f"uid-{os.getuid()}"


def _connection(kv: str | None, table: str, file: Path | None, pairs: Sequence[tuple[str, str]]) -> StagingConnection:
    if not kv:
        raise click.UsageError(f"which key-value store? Give --kv URL, or set {KV_VARIABLE}")
    # Who asks for help or writes it wrong waits for no import of what opens a store.
    from compaction.staging.store import StagingConnection

    refuse_password("kv", kv, KV_VARIABLE)
    for name, _ in pairs:
        if any(word in name.lower() for word in _SECRET_WORDS):
            raise click.UsageError(
                f"--option {name}: other users can read a command line, so it holds no secret: put the option into "
                f"the file that --store-options or {OPTIONS_VARIABLE} names"
            )
    options = {**options_of(file), **dict(pairs)}
    return StagingConnection(
        kv,
        table,
        MappingProxyType(options),
        kv_from="--kv" if is_given("kv") else KV_VARIABLE,
        options_from=str(file or ("--option" if pairs else "")),
    )


# A staging area by its policy: `-f policy.yaml`, with its Secrets in the same file or a directory.


def place_of_policy(source: TextIO, *, wanted: str | None, directory: Path | None) -> StagingPlace:
    """The repository of the policy in a file.

    Raises:
        click.UsageError: no file of policies, or none of a staging area.
        SecretError: a Secret that the policy names is in neither place, or lacks a key.
    """
    # The models of policies take longer to import than a command without such a file takes to answer.
    from compaction.cli.local.policy_file import PolicyFile
    from compaction.staging.connecting import connection_of

    file = PolicyFile(source, wanted=wanted, secrets_dir=directory)
    spec = file.policy.spec.store.staging_area
    if spec is None:
        raise click.UsageError(f"{source.name}: policy {file.policy.metadata.name} is not one of a staging area")
    return StagingPlace(connection_of(spec.reference, file), spec.repository, spec=spec)
