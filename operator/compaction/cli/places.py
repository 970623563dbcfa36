"""Options that say where a store is: secrets come from the environment and from files only."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from compaction.api.text.printing import cut, printable
from compaction.cli.lazy import errors_as_exit_code
from compaction.errors import CompactionError
from compaction.storage.errors import StoreOptionsError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

# Files with the options of an object store: YAML or JSON, one `option: value` per line.

MAX_TEXT: Final = 1 << 20
"""Bytes; a file of options has a few hundred."""


def options_of_file(path: Path) -> Mapping[str, str]:
    """The options, as text. Raises StoreOptionsError and OSError."""
    # YAML takes longer to import than a command without such a file takes to answer.
    import yaml

    from compaction.api.manifests import BoundedLoader

    with path.open("rb") as file:
        data = file.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise StoreOptionsError(f"{path}: larger than {MAX_TEXT} bytes: this is not a file of options")
    try:
        document = yaml.load(data.decode(), Loader=BoundedLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        # Its own words quote the text.
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise StoreOptionsError(f"{path}: neither YAML nor JSON{line}: write one `option: value` per line") from None
    if not isinstance(document, dict):
        raise StoreOptionsError(f"{path}: holds no options: write one `option: value` per line")
    return {str(name): _text(path, str(name), value) for name, value in document.items()}


def _text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise StoreOptionsError(f"{path}: option {printable(cut(name, 100))} has no plain value: put it into quotes")


OPTIONS_VARIABLE: Final = "COMPACTION_STORE_OPTIONS_FILE"
PATIENCE: Final = 10.0
"""Seconds for which a database that does not answer is retried: a user waits for the answer."""
_SECRET_PARTS: Final = frozenset({"password", "passfile", "sslpassword"})
Command = TypeVar("Command", bound=Callable[..., Any])

STORE_OPTIONS: Final[Any] = click.option(
    "--store-options",
    metavar="FILE",
    envvar=OPTIONS_VARIABLE,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Options of the object store as YAML or JSON, such as endpoint, region, access_key_id and "
    f"secret_access_key; default: {OPTIONS_VARIABLE}.",
)


def policy_options(read: str) -> tuple[Any, ...]:
    """`-f`, `--policy` and `--secrets-dir`, as the parameters `policy_file`, `policy_name` and `secrets_dir`.

    `read`: what a policy says, such as `store and index`.
    """
    return (
        click.option(
            "-f",
            "--file",
            "policy_file",
            type=click.File("r", encoding="utf-8"),
            help=f"Read {read} from a policy, as for kubectl apply -f, with its Secrets in the same file.",
        ),
        click.option(
            "--policy", "policy_name", metavar="NAME", help="Name of the policy, when the file holds several."
        ),
        click.option(
            "--secrets-dir",
            metavar="DIR",
            type=click.Path(file_okay=False, path_type=Path),
            help="Directory of Secrets that are not in the file: DIR/NAME/KEY.",
        ),
    )


def place_options(
    options: Iterable[Any], place_of: Callable[..., object], place_of_policy: Callable[..., object], *, what: str
) -> Callable[[Command], Command]:
    """The options that name a place, passed to the command as `place`.

    Args:
        options: all of them, with those of `policy_options` or without.
        place_of: makes the place of the values of the others, which are its parameters.
        place_of_policy: makes it of a policy: of the file, its name `wanted`, and the `directory` of Secrets.
        what: the noun for what a policy names, such as `store`.
    """
    parameters = inspect.signature(place_of).parameters

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            *, policy_file: Any = None, policy_name: str | None = None, secrets_dir: Path | None = None, **values: Any
        ) -> Any:
            own = {name: values.pop(name) for name in parameters if name in values}
            with errors_as_exit_code():
                if policy_file is None:
                    place = place_of(**own)
                else:
                    _refuse_given(own, what)
                    place = place_of_policy(policy_file, wanted=policy_name, directory=secrets_dir)
                return command(place=place, **values)

        result: Any = wrapped
        for option in reversed(tuple(options)):
            result = option(result)
        return result  # type: ignore[no-any-return]

    return decorate


def _refuse_given(names: Container[str | None], what: str) -> None:
    """Wrong usage: a policy and options name two stores. What the environment says is a default, and gives way."""
    for option in click.get_current_context().command.params:
        if option.name in names and is_given(option.name):
            raise click.UsageError(f"the policy says where the {what} is: leave out {option.opts[0]}")


def refuse_password(option: str, url: str, variable: str) -> None:
    """A URL on the command line holds no password. Raises click.UsageError, which names the environment variable."""
    found = parsed(url) if is_given(option) else None
    if found is not None and (found.password is not None or _SECRET_PARTS & found.query.keys()):
        raise click.UsageError(
            f"--{option}: other users can read a command line, so it holds no password: put the URL into the "
            f"environment variable {variable}"
        )


def options_of(file: Path | None) -> Mapping[str, str]:
    """The options of an object store. Raises StoreOptionsError and OSError."""
    if file is None:
        return MappingProxyType({})
    return options_of_file(file)


def is_given(option: str) -> bool:
    """Return whether a parameter of the command that runs comes from its command line."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def parsed(url: str) -> URL | None:
    """None for what is no URL: opening it says what is wrong, without quoting it."""
    # Only what names a database waits for the import of what opens one.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


def check_database(url: str, *, may_be_new: bool, absent: type[CompactionError], remedy: str) -> None:
    """A mistyped file must not become an empty database; the folder of one that `may_be_new` is made.

    Raises `absent`: there is no such file. `remedy`: the words about it and what to do.
    """
    address = parsed(url)
    if address is None or address.get_backend_name() != "sqlite" or not address.database:
        return
    file = Path(address.database)
    if may_be_new:
        file.parent.mkdir(parents=True, exist_ok=True)
    elif not file.exists():
        raise absent(f"{file}: {remedy}")
