"""Options that select a staging area; secrets come from the environment and from files only.

A staging area is the URL of its key-value store and the name of a repository in it. Where the objects are says the
record of the repository; how they are reached say the options of the object store.
"""

from __future__ import annotations

import functools
import getpass
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click
from click.core import ParameterSource
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from compaction.cli.errors import errors_as_exit_code
from compaction.cli.staging.pairs import PairParameter
from compaction.exceptions import NoStagingAreaError
from compaction.stores.staging.flows.area import Area
from compaction.stores.staging.kv.tables import TABLE
from compaction.stores.staging.store import StagingConnection, StagingStore
from compaction.stores.unreachable import explaining

if TYPE_CHECKING:
    from compaction.api.policy.staging_area import StagingAreaSpec

KV_VARIABLE: Final = "COMPACTION_KV_URL"
REPOSITORY_VARIABLE: Final = "COMPACTION_REPOSITORY"
OPTIONS_VARIABLE: Final = "COMPACTION_STORE_OPTIONS_FILE"
PATIENCE: Final = 10.0
"""Seconds for which a database that does not answer is retried: a user waits for the answer."""
_SECRET_PARTS: Final = frozenset({"password", "passfile", "sslpassword"})
_SECRET_WORDS: Final = ("secret", "token", "password", "account_key", "sas", "credential", "service_account")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Where a staging area is. `repository`: "" when the command names none. `may_be_new`: it may begin a store.
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
        url = _parsed(self.connection.kv_url)
        if url is None or url.get_backend_name() != "sqlite" or not url.database:
            return
        file = Path(url.database)
        if self.may_be_new:
            file.parent.mkdir(parents=True, exist_ok=True)
        elif not file.exists():
            raise NoStagingAreaError(
                f"{file}: there is no key-value store here: name one that exists, or begin one by creating a "
                "repository (`compactor staging repo create`)"
            )


def staging_options(
    *, repository: bool = True, required: bool = True, may_be_new: bool = False, policy: bool = False
) -> Callable[[Command], Command]:
    """The options that name a staging area, passed to the command as `place: StagingPlace`. `repository`: one of them
    is --repo, which is `required` or not. `policy`: a policy may name all of it instead.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            *,
            kv: str | None,
            table: str,
            store_options: Path | None,
            store_option: Sequence[tuple[str, str]],
            repo: str | None = None,
            policy_file: TextIO | None = None,
            policy_name: str | None = None,
            secrets_dir: Path | None = None,
            **rest: Any,
        ) -> Any:
            with errors_as_exit_code():
                if policy_file is not None:
                    # The models of policies take longer to import than a command without one takes to answer.
                    from compaction.cli.staging.policy_place import place_of_policy

                    _refuse_both()
                    return command(
                        place=place_of_policy(policy_file, wanted=policy_name, directory=secrets_dir), **rest
                    )
                if repository and required and not repo:
                    raise click.UsageError(f"which repository? Give --repo NAME, or set {REPOSITORY_VARIABLE}")
                connection = _connection(kv, table, store_options, store_option)
                return command(place=StagingPlace(connection, repo or "", may_be_new), **rest)

        result: Any = wrapped
        named = (*((_REPOSITORY,) if repository else ()), *(_POLICY if policy else ()))
        for option in reversed((*_OPTIONS, *named)):
            result = option(result)
        return result  # type: ignore[no-any-return]

    return decorate


_REPOSITORY: Final = click.option(
    "--repo",
    metavar="NAME",
    envvar=REPOSITORY_VARIABLE,
    help=f"The repository; default: {REPOSITORY_VARIABLE}.",
)
_POLICY: Final = (
    click.option(
        "-f",
        "--file",
        "policy_file",
        type=click.File("r", encoding="utf-8"),
        help="Read store and repository from a policy, as for kubectl apply -f, with its Secrets in the same file.",
    ),
    click.option("--policy", "policy_name", metavar="NAME", help="Name of the policy, when the file holds several."),
    click.option(
        "--secrets-dir",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Directory of Secrets that are not in the file: DIR/NAME/KEY.",
    ),
)
_OPTIONS: Final = (
    click.option(
        "--kv",
        metavar="URL",
        envvar=KV_VARIABLE,
        help=f"The key-value store: sqlite:///FILE, or postgresql://HOST/DATABASE; with a password only in "
        f"{KV_VARIABLE}, which is the default.",
    ),
    click.option("--table", metavar="NAME", default=TABLE, show_default=True, help="Its table."),
    click.option(
        "--store-options",
        metavar="FILE",
        envvar=OPTIONS_VARIABLE,
        type=click.Path(dir_okay=False, path_type=Path),
        help="Options of the object store as YAML or JSON, such as endpoint, region, access_key_id and "
        f"secret_access_key; default: {OPTIONS_VARIABLE}.",
    ),
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
        help="Who makes the commit.",
    )
    return option(command)  # type: ignore[no-any-return]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"


def _refuse_both() -> None:
    """Wrong usage: a policy and options name two stores. What the environment says is a default, and gives way."""
    flags = {"kv": "kv", "table": "table", "store_options": "store-options", "store_option": "option", "repo": "repo"}
    given = [flag for option, flag in flags.items() if _given(option)]
    if given:
        raise click.UsageError(f"the policy says where the repository is: leave out --{given[0]}")


def _connection(kv: str | None, table: str, file: Path | None, pairs: Sequence[tuple[str, str]]) -> StagingConnection:
    if not kv:
        raise click.UsageError(f"which key-value store? Give --kv URL, or set {KV_VARIABLE}")
    if _given("kv") and _holds_secret(kv):
        raise click.UsageError(
            "--kv: other users can read a command line, so it holds no password: put the URL into the environment "
            f"variable {KV_VARIABLE}"
        )
    for name, _ in pairs:
        if any(word in name.lower() for word in _SECRET_WORDS):
            raise click.UsageError(
                f"--option {name}: other users can read a command line, so it holds no secret: put the option into "
                f"the file that --store-options or {OPTIONS_VARIABLE} names"
            )
    options = {**_options_of(file), **dict(pairs)}
    return StagingConnection(
        kv,
        table,
        MappingProxyType(options),
        kv_from="--kv" if _given("kv") else KV_VARIABLE,
        options_from=str(file or ("--option" if pairs else "")),
    )


def _options_of(file: Path | None) -> Mapping[str, str]:
    if file is None:
        return MappingProxyType({})
    from compaction.cli.option_file import options_of_file

    return options_of_file(file)


def _given(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def _holds_secret(url: str) -> bool:
    parsed = _parsed(url)
    return parsed is not None and (parsed.password is not None or bool(_SECRET_PARTS & parsed.query.keys()))


def _parsed(url: str) -> URL | None:
    """None for what is no URL: opening it says what is wrong, without quoting it."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None
