"""Participants that a command asks: their addresses, the secret, certificates; and one round of questions."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from compaction.api.catalog.reasons import UNDEFINED
from compaction.api.text.quantities import Duration
from compaction.catalogs.errors import ParticipantConfigError
from compaction.catalogs.model.descriptors import physical
from compaction.cli.serving import FILE
from compaction.cli.values import DurationParameter

if TYPE_CHECKING:
    from compaction.catalogs.compaction.round import Round
    from compaction.catalogs.manager.clock import HybridClock
    from compaction.catalogs.serving.client import ParticipantAddress, ReportRound

Command = TypeVar("Command", bound=Callable[..., Any])
_LONGEST_SECRET: Final = 16 << 10

SECRET_OPTION: Final = click.option(
    "--secret-file", type=FILE, required=True, help="File whose first line is the bearer token to send."
)
PLAIN_HTTP_OPTION: Final = click.option(
    "--plain-http", is_flag=True, help="Allow plain HTTP beyond loopback (a proxy encrypts)."
)
TIMEOUT_OPTION: Final = click.option(
    "--timeout", type=DurationParameter(least=0.1), default="10s", show_default=True, help="Of one request."
)


def authorities_option(name: str) -> Callable[[Command], Command]:
    """Return the option for the authorities to trust; a command that reaches etcd too has another name for it."""
    return click.option(
        name, type=FILE, help="Certificates (PEM) of the authorities to trust; the system's if not given."
    )


_OPTIONS = (
    click.option(
        "--participant",
        "participants",
        metavar="NAME=URL",
        multiple=True,
        required=True,
        help="A participant and its address; repeat it for each, as all are needed for a decision.",
    ),
    SECRET_OPTION,
    authorities_option("--participant-ca"),
    PLAIN_HTTP_OPTION,
    TIMEOUT_OPTION,
    click.option(
        "--max-clock-skew", type=DurationParameter(), default="500ms", show_default=True, help="Allowed clock skew."
    ),
    click.option(
        "--data-availability",
        type=DurationParameter(),
        default="10m",
        show_default=True,
        help="For so long readers may use old versions: the low watermark is that much before now.",
    ),
)


@dataclass(frozen=True, slots=True)
class Asking:
    """The settings with which a round asks the participants. `max_skew`, `data_availability` and `timeout`: seconds."""

    addresses: tuple[ParticipantAddress, ...]
    secret: str
    tls: ssl.SSLContext | None
    plain: bool
    timeout: float
    max_skew: float
    data_availability: float

    def round(self, clock: HybridClock) -> Round:
        """All participants asked at once; each is an answer or a reason. Raises ParticipantConfigError."""
        # Who asks for help waits for no import of what asks, nor of the models that an answer is decided by.
        from compaction.catalogs.compaction.round import Round, Topology, WatermarkRule, moved

        started = clock.now()
        skew = round(self.max_skew * 1000)
        found = asyncio.run(self._asked(clock))
        return Round(
            started,
            moved(UNDEFINED, WatermarkRule(0, round(self.data_availability * 1000), skew), physical(started)),
            Topology(frozenset(address.name for address in self.addresses)),
            found.answers,
            found.unanswered,
            skew,
        )

    async def _asked(self, clock: HybridClock) -> ReportRound:
        from compaction.catalogs.serving.client import AskLimits, ParticipantClient, ask_all

        client = ParticipantClient(
            secret=lambda: self.secret,
            tls=self.tls,
            plain=self.plain,
            limits=AskLimits(seconds=self.timeout),
            clock=clock.now,
        )
        async with client:
            return await ask_all(client, self.addresses)


def asking_options(command: Command) -> Command:
    """The options that say whom to ask, passed to the command as `asking: Asking`."""

    @functools.wraps(command)
    def run(
        *args: Any,
        participants: tuple[str, ...],
        secret_file: Path,
        participant_ca: Path | None,
        plain_http: bool,
        timeout: Duration,
        max_clock_skew: Duration,
        data_availability: Duration,
        **rest: Any,
    ) -> Any:
        asking = Asking(
            tuple(_address(participant) for participant in participants),
            secret_of(secret_file),
            None if participant_ca is None else authorities_of(participant_ca),
            plain_http,
            float(timeout),
            float(max_clock_skew),
            float(data_availability),
        )
        return command(*args, asking=asking, **rest)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


def _address(given: str) -> ParticipantAddress:
    name, equals, url = given.partition("=")
    if not (name and equals and url):
        raise click.UsageError(f"--participant {given}: write it as NAME=URL, such as node-1=https://node-1:8092")
    from compaction.catalogs.serving.client import ParticipantAddress

    return ParticipantAddress(name, url)


def secret_of(file: Path) -> str:
    """The first line of a file. Raises ParticipantConfigError and OSError."""
    try:
        with file.open("rb") as opened:
            lines = opened.read(_LONGEST_SECRET).decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise ParticipantConfigError(f"{file}: a secret is ASCII text") from None
    if not (found := lines[0].strip()):
        raise ParticipantConfigError(f"{file}: its first line holds no secret")
    return found


def authorities_of(file: Path) -> ssl.SSLContext:
    """Certificates to trust. Raises ParticipantConfigError."""
    try:
        return ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError) as error:
        raise ParticipantConfigError(f"{file}: cannot be used as certificates of authorities: {error}") from None
