"""`ui`, the console as an HTTP application: who may come in, streams of pages, acts, and the end of a log.

On a workstation it listens on loopback. The address that is printed holds a token in its fragment, which no browser
sends to a server; a page exchanges it, once, for a key that it keeps by itself. There are no cookies, so neither
another site nor another program on this machine can have a browser act here. Behind a proxy the proxy says who the user
is, in headers, and the API server is asked to take us for that user.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import re
import secrets
import signal
import socket
import time
import webbrowser
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Final, TypeVar

import aiohttp
import click
import structlog
from aiohttp import web
from pydantic import ValidationError

from compaction.api.base import ApiModel, first_problem
from compaction.api.text.printing import cut, printable
from compaction.cli.cluster.access import connect
from compaction.cli.cluster.console.viewer import (
    NAME,
    REFRESH_SECONDS,
    SETTLE_SECONDS,
    ConsoleAct,
    ConsoleRefusal,
    PageStream,
    ProposedSpec,
    Viewer,
    carry_out,
    carry_out_preview,
    catalog_stream,
    failures_stream,
    fleet_stream,
    job_stream,
    policy_stream,
)
from compaction.cli.cluster.flags import CommandTarget, cluster_options
from compaction.errors import ApiError, CompactionError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection
from compaction.kube.errors import ClusterCommandError
from compaction.kube.logging import LogFormat, setup_logging

log = structlog.get_logger(__name__)
Model = TypeVar("Model", bound=ApiModel)

# Who may come in.

KEYS: Final = 16
"""Browsers that are signed in at a time; the one that came first is signed out by another."""
VIEWERS: Final = 64
"""Users at a time, behind a proxy: each has a connection and watches of its own."""
_SYSTEM: Final = "system:"


class OneTimeSignIn:
    """Tokens that sign in one browser each, and the keys that browsers got for them. `announce` gets each new token;
    `token` is the newest.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._keys: list[bytes] = []
        self.token = ""
        self.renew()

    def renew(self) -> None:
        """Make another token; the one before counts no more."""
        self.token = secrets.token_urlsafe(32)
        self._announce(self.token)

    def enter(self, token: str) -> str:
        """A key for a token, which counts once. Raises ConsoleRefusal."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise ConsoleRefusal(
                HTTPStatus.UNAUTHORIZED, "this address was used already: open the newest one that the terminal shows"
            )
        # Only a digest stays here: what is in memory opens no page.
        key = secrets.token_urlsafe(32)
        self._keys = [*self._keys[-(KEYS - 1) :], hashlib.sha256(key.encode()).digest()]
        self.renew()
        return key

    def check(self, request: web.Request) -> None:
        """Raises ConsoleRefusal without a key of ours."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(key.encode()).digest()
        known = [hmac.compare_digest(digest, item) for item in self._keys]
        if scheme != "Bearer" or not any(known):
            raise ConsoleRefusal(HTTPStatus.UNAUTHORIZED, "sign in: open the address that the terminal shows")


@dataclass(frozen=True, slots=True)
class ProxyIdentity:
    """The headers in which an authenticating proxy says who the user is. Nothing else may reach the port: the console
    listens on loopback, and the proxy runs beside it in the same pod. `groups`: those that count, as the console's own
    account may impersonate no others.
    """

    groups: frozenset[str] = frozenset()
    user_header: str = "X-Forwarded-User"
    group_header: str = "X-Forwarded-Groups"

    def of(self, request: web.Request) -> tuple[str, tuple[str, ...]]:
        """User and groups that count. Raises ConsoleRefusal: a header makes no user a part of the cluster itself."""
        users = request.headers.getall(self.user_header, [])
        if len(users) != 1 or not users[0].strip():
            raise ConsoleRefusal(HTTPStatus.UNAUTHORIZED, f"the proxy sent no {self.user_header}: sign in")
        listed = ",".join(request.headers.getall(self.group_header, []))
        user, groups = users[0].strip(), tuple(sorted(self.groups & {group.strip() for group in listed.split(",")}))
        # Whatever a proxy was made to send: the cluster's own components are never who a browser speaks for.
        if bad := next((name for name in (user, *groups) if name.startswith(_SYSTEM)), None):
            raise ConsoleRefusal(HTTPStatus.FORBIDDEN, f"{printable(cut(bad, 100))} is reserved for Kubernetes itself")
        # A page of another origin cannot set this header without being asked first, and it is never allowed to.
        if request.headers.get("X-Compaction-Console") != "1":
            raise ConsoleRefusal(HTTPStatus.FORBIDDEN, "the request did not come from a page of the console")
        return user, groups


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """hosts: values of the header Host that are ours, all others are refused (DNS rebinding). proxy: None on loopback.
    prometheus: base URL, with `prometheus_token` where it asks for one.
    """

    hosts: frozenset[str]
    proxy: ProxyIdentity | None = None
    prometheus: str | None = None
    prometheus_token: str | None = None


# The application.

CONTENT: Final[Mapping[str, str]] = {
    "index.html": "text/html",
    "console.js": "text/javascript",
    "pages.js": "text/javascript",
    "console.css": "text/css",
    "vendor/htm-preact.js": "text/javascript",
    "vendor/uPlot.js": "text/javascript",
    "vendor/uPlot.css": "text/css",
}
"""The files of the pages; no other path of the package is served."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "compaction",
}
_DEBT_DAYS: Final = 7
_DEBT_POINTS: Final = 336


class ConsoleServer:
    """The console for one event loop. `close` when the application has ended."""

    def __init__(
        self, connection: ApiConnection, target: CommandTarget, settings: ConsoleSettings, sign_in: OneTimeSignIn | None
    ) -> None:
        if (settings.proxy is None) == (sign_in is None):
            raise ValueError("users come either with a token or through a proxy")
        self._connection, self._target, self._settings, self._sign_in = connection, target, settings, sign_in
        self._viewers: dict[tuple[str, tuple[str, ...]], tuple[float, Viewer]] = {}
        self._files = {name: _file(name) for name in CONTENT}
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def application(self) -> web.Application:
        """Routes: pages and files are the same for everybody, what is under /api is the user's."""
        app = web.Application(client_max_size=1 << 20, middlewares=[self._answered])
        for path in ("/", "/failures", "/policy/{ns}/{name}", "/job/{ns}/{name}", "/catalog/{ns}/{name}"):
            app.router.add_get(path, self._shell)
        app.router.add_get("/static/{name:.+}", self._static)
        app.router.add_get("/healthz", self._health)
        app.router.add_post("/api/sign-in", self._enter)
        app.router.add_get("/api/me", self._me)
        app.router.add_get("/api/stream/fleet", self._streaming(fleet_stream))
        app.router.add_get("/api/stream/failures", self._streaming(failures_stream))
        app.router.add_get("/api/stream/policy/{namespace}/{name}", self._streaming(policy_stream))
        app.router.add_get("/api/stream/job/{namespace}/{name}", self._streaming(job_stream))
        app.router.add_get("/api/stream/catalog/{namespace}/{name}", self._streaming(catalog_stream))
        app.router.add_get("/api/log/{namespace}/{worker}", self._log)
        app.router.add_get("/api/debt", self._debt)
        app.router.add_post("/api/act", self._act)
        app.router.add_post("/api/preview", self._preview)
        app.on_response_prepare.append(_hardened)
        app.on_startup.append(self._started)
        app.on_shutdown.append(self._stopped)
        return app

    async def close(self) -> None:
        """End all watches and connections."""
        for _, viewer in self._viewers.values():
            await viewer.close()
        self._viewers.clear()

    async def _started(self, _: web.Application) -> None:
        self._sweeper = asyncio.create_task(self._sweep())

    async def _stopped(self, _: web.Application) -> None:
        self._stopping.set()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    async def _sweep(self) -> None:
        """End what no page needs any more; behind a proxy also users who have left."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for key, (used, viewer) in tuple(self._viewers.items()):
                viewer.sweep()
                # On a workstation there is one user, who comes back.
                if self._settings.proxy is not None and viewer.is_idle and time.monotonic() - used > 300:
                    del self._viewers[key]
                    await viewer.close()

    # Around every request.

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            # Another name that means this address is how a page of another site would get in. Probes name the pod.
            if request.headers.get("Host", "") not in self._settings.hosts and request.path != "/healthz":
                hosts = " or ".join(sorted(self._settings.hosts))
                raise ConsoleRefusal(HTTPStatus.MISDIRECTED_REQUEST, f"the console is at {hosts}")
            return await handler(request)
        except ConsoleRefusal as error:
            return _refused(error.status, str(error))
        except web.HTTPException as error:
            return _refused(HTTPStatus(error.status), error.reason)
        except ApiError as error:
            # What the API server said of the user's request stays what it was; anything else is a bad gateway.
            status = HTTPStatus(error.status) if error.status in (403, 404, 409, 422) else HTTPStatus.BAD_GATEWAY
            return _refused(status, error.said)
        except CompactionError as error:
            # Of the commands' own code: no such object, a plan that is not the current one, no answer in time.
            return _refused(HTTPStatus.CONFLICT, str(error))
        except (ConnectionResetError, asyncio.CancelledError):
            raise  # the browser went away, or the console ends
        except Exception:  # the boundary of a request: the page says that it failed, the log what it was
            log.exception("a request failed unexpectedly", path=request.path)
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "it failed here: the console's own log says why")

    async def _viewer(self, request: web.Request) -> Viewer:
        """The user's view. Raises ConsoleRefusal."""
        user: str = ""
        groups: tuple[str, ...] = ()
        connection = self._connection
        if self._sign_in is not None:
            self._sign_in.check(request)
        else:
            assert self._settings.proxy is not None, "one of the two is set"
            user, groups = self._settings.proxy.of(request)
            connection = replace(connection, user=user, groups=groups)
        known = self._viewers.get((user, groups))
        if known is None:
            # One that has left makes room before the sweep comes.
            for key, (_, idle) in tuple(self._viewers.items()):
                if len(self._viewers) >= VIEWERS and idle.is_idle:
                    del self._viewers[key]
                    await idle.close()
            if len(self._viewers) >= VIEWERS:
                raise ConsoleRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many users are signed in: try again later")
            viewer = Viewer(ApiClient(connection, user_agent="compaction-console"), self._target)
        else:
            viewer = known[1]
        self._viewers[user, groups] = (time.monotonic(), viewer)
        return viewer

    # Open to everybody who knows the address: nothing in it is of the cluster.

    async def _shell(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._files["index.html"], content_type="text/html", charset="utf-8")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        # No path is built from what was asked for: a name is one of the table, or nothing.
        if name not in CONTENT or name == "index.html":
            raise web.HTTPNotFound
        return web.Response(body=self._files[name], content_type=CONTENT[name], charset="utf-8")

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        if self._sign_in is None:
            raise ConsoleRefusal(HTTPStatus.NOT_FOUND, "the proxy signs users in")
        body = await _json(request)
        return web.json_response({"key": self._sign_in.enter(str(body.get("token", "")))})

    # The user's.

    async def _me(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        return web.json_response(
            {
                "user": await viewer.access.user(),
                "server": self._connection.server,
                "namespace": viewer.namespace,
                "prometheus": self._settings.prometheus is not None,
            }
        )

    def _streaming(
        self, open_page: Callable[..., Awaitable[PageStream]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def stream(request: web.Request) -> web.StreamResponse:
            viewer = await self._viewer(request)
            named = _named(request)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            async with contextlib.AsyncExitStack() as stack:
                page = await open_page(viewer, stack, **named)
                changed = asyncio.Event()
                for kind in page.kinds:
                    stack.enter_context(kind.telling(changed))
                await asyncio.gather(*(kind.loaded.wait() for kind in page.kinds))
                content = await page.build()  # a page that cannot be made is a refusal, not a stream that ends
                await response.prepare(request)
                with contextlib.suppress(ConnectionResetError):  # the browser has left
                    await self._send(response, page, content, changed)
            return response

        return stream

    async def _send(
        self, response: web.StreamResponse, page: PageStream, content: dict[str, Any], changed: asyncio.Event
    ) -> None:
        sent: dict[str, Any] = {}
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                # A comment keeps proxies from closing the stream, and tells the page that the console is there.
                is_news = bool(content) and content != sent
                line = f"data: {json.dumps(content, separators=(',', ':'))}" if is_news else ": nothing new"
                await response.write(f"{line}\n\n".encode())
                sent = content
                # The end of the console ends the page too: aiohttp would wait for streams before it closes.
                waiting = asyncio.create_task(changed.wait())
                await asyncio.wait({waiting, stopping}, timeout=REFRESH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                await asyncio.sleep(SETTLE_SECONDS)
                changed.clear()
                content = await page.build()
        finally:
            stopping.cancel()

    async def _log(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        return web.json_response({"log": await viewer.log_end(**_named(request))})

    async def _act(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        act = await _sent(request, ConsoleAct)
        said = await carry_out(act, viewer, datetime.now(UTC))
        log.info("acted", act=act.act, kind=act.kind, namespace=act.namespace, name=act.name)
        return web.json_response({"said": said})

    async def _preview(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._viewer(request)
        return web.json_response({"said": await carry_out_preview(await _sent(request, ProposedSpec), viewer)})

    async def _debt(self, request: web.Request) -> web.StreamResponse:
        """Debt over the last week, of one policy or of all that the user sees, from Prometheus."""
        viewer = await self._viewer(request)
        if self._settings.prometheus is None:
            raise ConsoleRefusal(HTTPStatus.NOT_FOUND, "the console was started without --prometheus")
        namespace, name = request.query.get("namespace"), request.query.get("name")
        async with viewer.policies() as kind:
            await kind.loaded.wait()
            # Prometheus knows no rights: only what this user may read is asked for.
            metas = [policy.metadata for policy in kind.models()[0]]
        names = sorted({(meta.namespace, meta.name) for meta in metas})
        # Of one policy nothing is asked unless the user may read that one.
        if name is not None:
            names = [item for item in names if item == (namespace, name)]
        points = await self._range(names, whole=name is None) if names else []
        return web.json_response({"points": points})

    async def _range(self, names: list[tuple[str, str]], *, whole: bool) -> list[list[float]]:
        spaces = "|".join(sorted({namespace for namespace, _ in names}))
        chosen = f'namespace=~"{spaces}"' if whole else f'namespace="{names[0][0]}",policy="{names[0][1]}"'
        end = time.time()
        # A standby replica exports no debt, and one that has just stopped leading the same: the maximum is the debt.
        query = {
            "query": f"sum(max by (namespace, policy) (compaction_debt_bytes{{{chosen}}}))",
            "start": f"{end - _DEBT_DAYS * 86400:.0f}",
            "end": f"{end:.0f}",
            "step": str(_DEBT_DAYS * 86400 // _DEBT_POINTS),
        }
        token = self._settings.prometheus_token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{str(self._settings.prometheus).rstrip('/')}/api/v1/query_range"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
                session.get(url, params=query, headers=headers) as answer,
            ):
                found = await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ConsoleRefusal(HTTPStatus.BAD_GATEWAY, f"Prometheus does not answer: {error}") from error
        series = (found.get("data") or {}).get("result") or []
        return [[float(moment), float(value)] for moment, value in series[0]["values"]] if series else []


def _named(request: web.Request) -> dict[str, str]:
    """The names in a path. Raises ConsoleRefusal: they become parts of a path and of a selector of the API server."""
    for name in request.match_info.values():
        if re.fullmatch(NAME, name) is None:
            raise ConsoleRefusal(HTTPStatus.NOT_FOUND, f"{printable(cut(name, 100))} is no name")
    return dict(request.match_info)


def _file(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", *name.split("/")).read_bytes()


async def _sent(request: web.Request, model: type[Model]) -> Model:
    """The body by its model. Raises ConsoleRefusal."""
    try:
        return model.from_object(await _json(request))
    except ValidationError as error:
        raise ConsoleRefusal(HTTPStatus.BAD_REQUEST, first_problem(error)) from None


async def _json(request: web.Request) -> dict[str, Any]:
    """Raises ConsoleRefusal."""
    if request.content_type != "application/json":
        raise ConsoleRefusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is application/json")
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ConsoleRefusal(HTTPStatus.BAD_REQUEST, "the body is a JSON object")
    return body


def _refused(status: HTTPStatus, message: str) -> web.Response:
    return web.json_response({"message": printable(cut(message, 1000))}, status=status)


async def _hardened(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


# `ui`: the console on this machine, or in a pod beside an authenticating proxy.
#
# Exit codes: 0 it was stopped; 1 it could not be started; 2 wrong usage.

PORT: Final = 8089
_LOOPBACK: Final = "127.0.0.1"


@click.command("ui")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free one.")
@click.option("--open", "opening", is_flag=True, help="Open the address in the default browser.")
@click.option("--prometheus", metavar="URL", help="Show debt of the last week from this Prometheus.")
@click.option(
    "--prometheus-token-file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Bearer token for it.",
)
@click.option("--behind-proxy", is_flag=True, help="Take the user from headers of a proxy beside it (impersonation).")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="With --behind-proxy: its host name. Repeatable.")
@click.option(
    "--group",
    "counted_groups",
    multiple=True,
    metavar="GROUP",
    help="With --behind-proxy: a group of its users that counts; all others are left out. Repeatable.",
)
@click.option("--user-header", default="X-Forwarded-User", show_default=True, help="With --behind-proxy: the user.")
@click.option(
    "--group-header",
    default="X-Forwarded-Groups",
    show_default=True,
    help="With --behind-proxy: the groups, with commas between them.",
)
@cluster_options(all_namespaces=True)
def command(
    *,
    port: int,
    opening: bool,
    prometheus: str | None,
    prometheus_token_file: Path | None,
    behind_proxy: bool,
    hosts: tuple[str, ...],
    counted_groups: tuple[str, ...],
    user_header: str,
    group_header: str,
    target: CommandTarget,
) -> None:
    """Serve the console: the fleet, each policy, job and catalog, and failures by reason, in a browser.

    It listens on loopback, with your rights: what you may not do has no button. The address that it prints signs in one
    browser, once; another one follows for the next. Stop it with Ctrl-C.

    Example: kubectl compaction ui -A --open
    """
    if (hosts or counted_groups) and not behind_proxy:
        raise click.UsageError("--host and --group are of a proxy: give --behind-proxy too")
    if behind_proxy and not hosts:
        raise click.UsageError("--behind-proxy needs --host: the name by which browsers reach the proxy")
    if behind_proxy and (target.user or opening):
        raise click.UsageError("--behind-proxy takes neither --as nor --open: users come through the proxy")
    if prometheus_token_file is not None and prometheus is None:
        raise click.UsageError("--prometheus-token-file needs --prometheus")
    listening = _listen(port)
    port = listening.getsockname()[1]
    own = frozenset((f"{_LOOPBACK}:{port}", f"localhost:{port}"))
    setup_logging(LogFormat.TEXT, level=logging.WARNING)
    settings = ConsoleSettings(
        hosts=frozenset(hosts) or own,
        proxy=ProxyIdentity(frozenset(counted_groups), user_header, group_header) if behind_proxy else None,
        prometheus=prometheus,
        prometheus_token=prometheus_token_file.read_text().strip() if prometheus_token_file is not None else None,
    )

    def announce(token: str) -> None:
        click.echo(f"Sign in: http://{_LOOPBACK}:{port}/#token={token}")

    sign_in = None if behind_proxy else OneTimeSignIn(announce)
    server = ConsoleServer(connect(target), target, settings, sign_in)
    if behind_proxy:
        click.echo(f"The console listens on {_LOOPBACK}:{port} for the proxy of {', '.join(hosts)}")
    with ExitStack() as stack:
        if opening and sign_in is not None:
            page = stack.enter_context(NamedTemporaryFile("w", prefix="compaction-console-", suffix=".html"))
            open_in_browser(page, f"http://{_LOOPBACK}:{port}/#token={sign_in.token}")
        asyncio.run(_serve(server, listening))


def open_in_browser(page: IO[str], address: str) -> None:
    """Have the browser follow a page that only its user may read: as an argument, the address would be visible to every
    user of the machine.
    """
    page.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={address}">')
    page.flush()
    webbrowser.open(Path(page.name).as_uri())


def _listen(port: int) -> socket.socket:
    """Raises ClusterCommandError."""
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        why = f"cannot listen on {_LOOPBACK}:{port}: {error.strerror}; choose another --port, or 0 for any free one"
        raise ClusterCommandError(why) from None


async def _serve(server: ConsoleServer, listening: socket.socket) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    # Streams end with a last byte instead of a reset, which a page would take for a lost connection.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(server.application(), access_log=None, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        await stop.wait()
    finally:
        await runner.cleanup()
        await server.close()
