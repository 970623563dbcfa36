"""Options that select repositories and branches of a live lakeFS, and how they are merged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from compaction.api.text.quantities import Duration
from compaction.cli.values import DurationParameter
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.lakefs.control import TokenMergeSettings
from compaction.staging.lakefs.repository import LiveRepository, open_live_repository
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects

if TYPE_CHECKING:
    from compaction.staging.kv.sql import SqlKeyValueStore

Command = TypeVar("Command", bound=Callable[..., Any])
_DEFAULTS: Final = TokenMergeSettings()


@dataclass(frozen=True, slots=True)
class LivePlace:
    """The place of repositories. `objects`: the URL of a repository's objects, where it is not that of the servers."""

    staging: StagingPlace
    objects: str | None

    @property
    def repository(self) -> str:
        return self.staging.repository

    @contextmanager
    def kv(self) -> Iterator[SqlKeyValueStore]:
        """The key-value store, closed at the end. Raises as `StagingPlace.open`."""
        with self.staging.open() as store:
            yield store.kv

    def repo(self, kv: SqlKeyValueStore, name: str = "") -> LiveRepository:
        """One repository, after all checks; without a name the one of the options. Raises as `open_live_repository`."""
        options, name = self.staging.connection.options, name or self.repository
        if self.objects is None:
            return open_live_repository(kv, name, options=options)
        return open_live_repository(kv, name, ranges=RangeStorage(open_objects(self.objects, options=options)))


def live_options(*, repository: bool = True, objects: bool = True) -> Callable[[Command], Command]:
    """The options that name a live lakeFS, passed to the command as `place: LivePlace`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*, place: StagingPlace, objects: str | None = None, **rest: Any) -> Any:
            return command(place=LivePlace(place, objects), **rest)

        described: Any = _OBJECTS(wrapped) if objects else wrapped
        return staging_options(repository=repository)(described)  # type: ignore[no-any-return]

    return decorate


_OBJECTS: Final = click.option(
    "--objects",
    metavar="URL",
    help="The objects of the repository, if they are not at its storage namespace: for a namespace local://..., for "
    "instance.",
)


def merge_options(command: Command) -> Command:
    """Add the options by which sealed tokens are merged, passed to the command as `settings: TokenMergeSettings`."""

    @functools.wraps(command)
    def wrapped(
        *,
        seal_staging: bool,
        least_tokens: int,
        quiet: Duration,
        busy: Duration,
        grace: Duration,
        **rest: Any,
    ) -> Any:
        settings = TokenMergeSettings(
            quiet=quiet,
            yields=busy,
            grace=grace,
            least_tokens=least_tokens,
            seals=seal_staging,
            lease=max(_DEFAULTS.lease, 3 * quiet),
        )
        return command(settings=settings, **rest)

    result: Any = wrapped
    for option in reversed(_OF_MERGES):
        result = option(result)
    return result  # type: ignore[no-any-return]


def _duration(name: str, default: float, help: str) -> Callable[[Command], Command]:
    return click.option(name, type=DurationParameter(), default=f"{default:g}s", show_default=True, help=help)


_OF_MERGES: Final = (
    click.option("--seal-staging", is_flag=True, help="Seal the staging token first, where it has rows."),
    click.option(
        "--least-tokens",
        type=click.IntRange(1),
        default=_DEFAULTS.least_tokens,
        show_default=True,
        help="Fewer sealed tokens are not merged.",
    ),
    _duration("--quiet", _DEFAULTS.quiet, "Scan the tokens of a branch when it has stayed unchanged for so long."),
    _duration("--busy", _DEFAULTS.yields, "A branch that was seen to change within this time is skipped."),
    _duration("--grace", _DEFAULTS.grace, "Keep old tokens for so long after the swap."),
)
