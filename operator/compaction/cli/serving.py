"""The options of every command that serves an HTTP endpoint: address, TLS, and who may come in."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from compaction.api.text.quantities import Quantity
from compaction.cli.cluster.flags import kubeconfig_option
from compaction.cli.lazy import freeze_modules
from compaction.kube.logging import LogFormat, setup_logging

if TYPE_CHECKING:
    from compaction.serving.access import AccessRules, AllowedAccounts, Gate, SharedSecret
    from compaction.serving.service import Address, HttpService, RequestLimits

Command = TypeVar("Command", bound=Callable[..., Any])
FILE: Final = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Callers:
    """The callers that may come in."""

    secrets: tuple[SharedSecret, ...]
    accounts: AllowedAccounts | None
    audiences: tuple[str, ...]
    kubeconfig: Path | None
    rules: AccessRules | None

    async def gate(self, stack: AsyncExitStack) -> Gate:
        """For this event loop. Raises IngestConfigError, ConnectionConfigError."""
        from compaction.serving.access import CachedReviews, Gate

        if self.accounts is None:
            return Gate(self.secrets, None, self.rules)
        # Who asks no cluster about tokens waits for no import of a client of one.
        from compaction.kube.client.api import ApiClient
        from compaction.kube.client.config import load_connection
        from compaction.kube.client.tokens import TokenReviewer

        client = await stack.enter_async_context(ApiClient(load_connection(self.kubeconfig)))
        reviews = CachedReviews(TokenReviewer(client, self.audiences), self.accounts)
        return Gate(self.secrets, reviews, self.rules)


@dataclass(frozen=True, slots=True)
class Serving:
    """An endpoint that is about to be served."""

    callers: Callers
    limits: RequestLimits
    address: Address

    def run(self, make: Callable[[Gate, RequestLimits], HttpService]) -> None:
        """Serve what `make` returns until SIGTERM or SIGINT. Raises IngestConfigError, ConnectionConfigError."""
        freeze_modules()
        asyncio.run(self._serve(make))

    async def _serve(self, make: Callable[[Gate, RequestLimits], HttpService]) -> None:
        from compaction.serving.service import serve

        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            server = make(await self.callers.gate(stack), self.limits)
            try:
                await serve(server, self.address, stop=stop)
            finally:
                server.close()


def serving_options(
    *, port: int, audience: str, purpose: str, rules: str, noun: str, nouns: str
) -> Callable[[Command], Command]:
    """The options of an endpoint, passed to the command as `serving: Serving`; logging is set up then.

    purpose: what a caller could not do without any that may come in. rules: the option for a file of `AccessRules`, of
    this noun.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            *,
            bind_address: str,
            port: int,
            tls_cert: Path | None,
            tls_key: Path | None,
            plain_http: bool,
            secret_files: tuple[str, ...],
            accounts: tuple[str, ...],
            audiences: tuple[str, ...],
            kubeconfig: Path | None,
            rules: Path | None,
            max_body: str,
            concurrency: int,
            drain_seconds: float,
            log_format: str,
            **rest: Any,
        ) -> Any:
            if (tls_cert is None) != (tls_key is None):
                raise click.UsageError("--tls-cert and --tls-key go together")
            if not secret_files and not accounts:
                raise click.UsageError(f"no caller could {purpose}: give --secret-file or --allow-service-account")
            # Who asks for help or writes it wrong waits for no import of what serves.
            from compaction.serving.access import AccessRules, AllowedAccounts
            from compaction.serving.service import Address, RequestLimits, TlsFiles

            tls = TlsFiles(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
            address = Address(bind_address, port, tls, plain_http, drain_seconds)
            address.check()
            callers = Callers(
                secrets=tuple(_shared_secret(written) for written in secret_files),
                accounts=AllowedAccounts(accounts) if accounts else None,
                audiences=audiences,
                kubeconfig=kubeconfig,
                rules=AccessRules.read(rules, noun=noun, nouns=nouns) if rules is not None else None,
            )
            limits = RequestLimits(body_bytes=_bytes(max_body), in_flight=8 * concurrency, threads=concurrency)
            setup_logging(LogFormat(log_format), level=logging.INFO)
            return command(serving=Serving(callers, limits, address), **rest)

        result: Any = wrapped
        for option in reversed((*_address(port), *_callers(audience, rules, noun), *_LIMITS)):
            result = option(result)
        return result  # type: ignore[no-any-return]

    return decorate


def _address(port: int) -> tuple[Callable[[Any], Any], ...]:
    return (
        click.option("--bind-address", default="127.0.0.1", show_default=True, help="Address to listen on."),
        click.option("--port", type=click.IntRange(0, 65535), default=port, show_default=True, help="0: any free one."),
        click.option("--tls-cert", type=FILE, help="Certificate with its chain (PEM); read again when it is replaced."),
        click.option("--tls-key", type=FILE, help="Its key (PEM)."),
        click.option("--plain-http", is_flag=True, help="Listen beyond loopback without TLS (a proxy encrypts)."),
    )


def _callers(audience: str, rules: str, noun: str) -> tuple[Callable[[Any], Any], ...]:
    return (
        click.option(
            "--secret-file",
            "secret_files",
            multiple=True,
            metavar="NAME=FILE",
            help="A caller whose bearer token is a line of the file is secret:NAME. Repeatable.",
        ),
        click.option(
            "--allow-service-account",
            "accounts",
            multiple=True,
            metavar="NAMESPACE/NAME",
            help="Allow callers with a token of this account (TokenReview); NAMESPACE/* allows a namespace. "
            "Repeatable.",
        ),
        click.option(
            "--audience",
            "audiences",
            multiple=True,
            default=(audience,),
            show_default=True,
            help="Required audience of service account tokens.",
        ),
        kubeconfig_option(),
        click.option(
            rules,
            "rules",
            type=FILE,
            help=f'YAML, `principal: [{noun}, ...]`, where "*" is every {noun}: all other callers are refused. '
            "Principals are secret:NAME and system:serviceaccount:NAMESPACE:NAME.",
        ),
    )


_LIMITS: Final = (
    click.option("--max-body", default="1Mi", show_default=True, metavar="QUANTITY", help="Maximum size of a request."),
    click.option(
        "--concurrency", type=click.IntRange(1, 64), default=8, show_default=True, help="Number of concurrent requests."
    ),
    click.option(
        "--drain-seconds",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        help="Time for which requests are accepted after SIGTERM, so that clients can switch.",
    ),
    click.option("--log-format", type=click.Choice([f.value for f in LogFormat]), default="text", show_default=True),
)


def _shared_secret(written: str) -> SharedSecret:
    """Raises click.UsageError, IngestConfigError."""
    name, sign, file = written.partition("=")
    if not sign or not file:
        # What was written may be the secret itself.
        raise click.UsageError("--secret-file: write NAME=FILE, such as writer=/etc/ingest/writer")
    from compaction.serving.access import SharedSecret

    return SharedSecret(name, Path(file))


def _bytes(written: str) -> int:
    try:
        found = int(Quantity(written))
    except ValueError as error:
        raise click.UsageError(f"--max-body: {error}") from error
    if not 1 <= found <= 64 << 20:
        raise click.UsageError("--max-body: between 1 byte and 64Mi")
    return found
