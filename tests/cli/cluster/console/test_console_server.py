"""Who may come in, what is served to everybody, whose rights count behind a proxy; no browser."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import yaml
from aiohttp import web

from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.cluster.access import connect
from compaction.cli.cluster.console import viewer
from compaction.cli.cluster.console.ui import (
    CONTENT,
    ConsoleServer,
    ConsoleSettings,
    OneTimeSignIn,
    ProxyIdentity,
    command,
    open_in_browser,
)
from compaction.cli.cluster.flags import CommandTarget
from compaction.errors import ApiError, ForbiddenError
from compaction.kube.client.api import ApiClient
from house.sources import ROOT
from support.cluster.by_kubectl import RBAC, Cluster, User, apply, bind, make
from support.cluster.manifests import policy_object

pytestmark = pytest.mark.apiserver

STATIC = ROOT / "operator" / "compaction" / "cli" / "cluster" / "console" / "static"
VENDORED = {
    "htm-preact.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "uPlot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of files that others wrote, as their packages ship them (NOTICE)."""
COMPONENT = ROOT / "manifests" / "components" / "console"
HOST = "console.example.com"


@asynccontextmanager
async def served(kubeconfig: Path, namespace: str, **settings: Any) -> AsyncIterator[tuple[str, OneTimeSignIn | None]]:
    """A console on a free port of this loop."""
    target = CommandTarget(kubeconfig=kubeconfig, namespace=namespace)
    sign_in = None if "proxy" in settings else OneTimeSignIn(lambda _: None)
    hosts = frozenset({HOST})
    server = ConsoleServer(connect(target), target, ConsoleSettings(hosts=hosts, **settings), sign_in)
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", sign_in
    finally:
        await runner.cleanup()
        await server.close()


Ask = Callable[..., Awaitable[tuple[int, Any]]]


def asking(session: aiohttp.ClientSession, base: str) -> Ask:
    async def ask(method: str, path: str, *, body: Any = None, **headers: str) -> tuple[int, Any]:
        sent = {"Host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with session.request(method, base + path, json=body, headers=sent) as answer:
            assert "Set-Cookie" not in answer.headers
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
            said = await answer.json() if answer.content_type == "application/json" else await answer.text()
            return answer.status, said

    return ask


def test_a_token_signs_in_once_and_only_at_our_own_address(editor: User, namespace: str) -> None:
    async def go() -> None:
        async with served(editor.kubeconfig, namespace) as (base, sign_in), aiohttp.ClientSession() as session:
            assert sign_in is not None
            ask, token = asking(session, base), sign_in.token
            assert (await ask("GET", "/"))[0] == 200
            assert (await ask("GET", "/healthz", Host="10.0.0.1"))[0] == 200
            assert (await ask("GET", "/", Host="evil.example.com:8089"))[0] == 421
            for path in ("/api/me", "/api/stream/fleet", "/api/debt"):
                assert (await ask("GET", path))[0] == 401, path
                assert (await ask("GET", path, Authorization=f"Bearer {token}"))[0] == 401, "a token is no key"
            assert (await ask("POST", "/api/act", body={}))[0] == 401
            assert (await ask("POST", "/api/sign-in", body={"token": "x"}))[0] == 401
            status, found = await ask("POST", "/api/sign-in", body={"token": token})
            assert status == 200
            assert (await ask("POST", "/api/sign-in", body={"token": token}))[0] == 401
            assert sign_in.token != token
            key = f"Bearer {found['key']}"
            status, me = await ask("GET", "/api/me", Authorization=key)
            assert (status, me["user"]) == (200, f"compaction-editor-{namespace}")
            for path in ("/static/index.html", "/static/../serving.py", "/static/%2e%2e/serving.py", "/etc/passwd"):
                assert (await ask("GET", path))[0] == 404, path
            for path in ("stream/policy/..%2f..%2fkube-system/x", "stream/job/a/b%3Fwatch=1", "log/a/b%2Clabel"):
                status, said = await ask("GET", f"/api/{path}", Authorization=key)
                assert (status, said["message"].endswith("is no name")) == (404, True), path
            # What is not one of ours is refused before anything is asked of the API server.
            act = {"act": "run-now", "kind": "policy", "namespace": "a/../..", "name": "b"}
            status, said = await ask("POST", "/api/act", body=act, Authorization=key)
            assert (status, said["message"].partition(":")[0]) == (400, "namespace")
            status, said = await ask(
                "POST", "/api/act", body=act | {"namespace": "a", "act": "retry"}, Authorization=key
            )
            assert (status, said["message"]) == (400, "retry is not for a policy")
            status, said = await ask("POST", "/api/act", body=act | {"namespace": namespace}, Authorization=key)
            assert (status, said["message"].partition(":")[0]) == (
                409,
                f'no CompactionPolicy "b" in namespace "{namespace}"',
            )

    asyncio.run(go())


def test_an_approval_of_a_policy_of_an_older_schema_names_the_field(
    editor: User, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server's definition is that of before, which no real one here has."""
    bad = policy_object("bad")
    bad["metadata"]["namespace"] = namespace
    bad["spec"]["store"]["segmentLogs"]["root"] = "relative"

    async def get(*_: Any, **__: Any) -> dict[str, Any]:
        return bad

    async def go() -> tuple[int, Any]:
        async with served(editor.kubeconfig, namespace) as (base, sign_in), aiohttp.ClientSession() as session:
            assert sign_in is not None
            ask = asking(session, base)
            _, found = await ask("POST", "/api/sign-in", body={"token": sign_in.token})
            monkeypatch.setattr(ApiClient, "get", get)
            act = {"act": "approve", "kind": "policy", "namespace": namespace, "name": "bad", "plan": "0" * 16}
            return await ask("POST", "/api/act", body=act, Authorization=f"Bearer {found['key']}")

    status, said = asyncio.run(go())
    why = f"CompactionPolicy {namespace}/bad is not valid: spec.store.segmentLogs.root: "
    assert (status, said["message"][: len(why)]) == (409, why)


def test_behind_a_proxy_the_rights_are_those_of_the_user_that_it_names(
    cluster: Cluster, control_plane: Any, user: Callable[[str], User], tmp_path: Path
) -> None:
    """With the role of components/console, as the pod has it."""
    space, admin = cluster.namespace, control_plane.admin
    make(cluster, policy_object("logs"))
    user("compaction-viewer")  # the roles are there now
    bind(admin, "compaction-editor", f"alice-{space}", namespace=space)
    account = f"console-{space}"
    _, role, binding = yaml.safe_load_all((COMPONENT / "account.yaml").read_text())
    binding["metadata"]["name"] = account
    binding["subjects"] = [{"apiGroup": RBAC, "kind": "User", "name": account}]
    apply(admin, [role, binding], namespace=space)
    kubeconfig = control_plane.running.kubeconfig_for(account, tmp_path / "console", namespace=space)
    identity = ProxyIdentity(frozenset({"compaction-users", "other"}))

    async def go() -> None:
        async with served(kubeconfig, space, proxy=identity) as (base, _), aiohttp.ClientSession() as session:
            ask, body = asking(session, base), {"act": "scan", "kind": "policy", "namespace": space, "name": "logs"}
            alice = {"X_Forwarded_User": f"alice-{space}", "X_Compaction_Console": "1"}
            assert (await ask("POST", "/api/act", body=body, **alice))[0] == 200
            bob = alice | {"X_Forwarded_User": f"bob-{space}", "X_Forwarded_Groups": "team,compaction-users"}
            status, said = await ask("POST", "/api/act", body=body, **bob)
            assert status == 403
            assert f'User "bob-{space}" cannot patch resource "compactionpolicies"' in said["message"]
            status, me = await ask("GET", "/api/me", **bob)
            assert (status, me["user"]) == (200, f"bob-{space}")
            # Without a user, as a part of the cluster, and from a page of another site: not at all.
            assert (await ask("GET", "/api/me", X_Compaction_Console="1"))[0] == 401
            assert (await ask("GET", "/api/me", X_Forwarded_User=f"alice-{space}"))[0] == 403
            for name in ("system:admin", "system:serviceaccount:kube-system:x"):
                assert (await ask("GET", "/api/me", **(alice | {"X_Forwarded_User": name})))[0] == 403
            # Groups that are not on the list do not count, and one that the role does not name is no use.
            masters = alice | {"X_Forwarded_Groups": "system:masters"}
            status, said = await ask("POST", "/api/act", body=body | {"namespace": "kube-system"}, **masters)
            assert status == 403
            status, said = await ask("POST", "/api/act", body=body, **(alice | {"X_Forwarded_Groups": "other"}))
            assert (status, 'cannot impersonate resource "groups"' in said["message"]) == (403, True)
            assert (await ask("POST", "/api/sign-in", body={"token": ""}))[0] == 404

    asyncio.run(go())


def test_debt_over_time_is_asked_of_prometheus_only_for_what_the_user_reads(cluster: Cluster, editor: User) -> None:
    """Prometheus is played by a server that keeps what it was asked."""
    space = cluster.namespace
    make(cluster, policy_object("logs"))
    asked: list[tuple[str, str]] = []

    async def prometheus(request: web.Request) -> web.Response:
        asked.append((request.query["query"], request.headers.get("Authorization", "")))
        return web.json_response({"data": {"result": [{"metric": {}, "values": [[1.0, "5"], [2.0, "7"]]}]}})

    async def go() -> None:
        app = web.Application()
        app.router.add_get("/prefix/api/v1/query_range", prometheus)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/prefix/"
        async with (
            served(editor.kubeconfig, space, prometheus=url, prometheus_token="of-prometheus") as (base, sign_in),
            aiohttp.ClientSession() as session,
        ):
            assert sign_in is not None
            ask = asking(session, base)
            _, found = await ask("POST", "/api/sign-in", body={"token": sign_in.token})
            key = {"Authorization": f"Bearer {found['key']}"}
            assert await ask("GET", f"/api/debt?namespace={space}&name=logs", **key) == (
                200,
                {"points": [[1.0, 5.0], [2.0, 7.0]]},
            )
            assert await ask("GET", "/api/debt", **key) == (200, {"points": [[1.0, 5.0], [2.0, 7.0]]})
            # Of another namespace, or with a selector in the name, nothing is asked at all.
            for path in ("namespace=kube-system&name=logs", f'namespace={space}&name=logs",x="'):
                assert await ask("GET", f"/api/debt?{path}", **key) == (200, {"points": []})
            await runner.cleanup()
            status, said = await ask("GET", "/api/debt", **key)
            assert (status, said["message"].startswith("Prometheus does not answer: ")) == (502, True)

    asyncio.run(go())
    labels = [re.findall(r"compaction_debt_bytes{(.*?)}", query) for query, _ in asked]
    assert labels == [[f'namespace="{space}",policy="logs"'], [f'namespace=~"{space}"']]
    assert {token for _, token in asked} == {"Bearer of-prometheus"}


class RightsClient:
    """An API server that is asked what it would do with an approval."""

    def __init__(self) -> None:
        self.answer: ApiError | None = None
        self.tries = 0

    async def patch(self, *_: Any, **__: Any) -> Any:
        self.tries += 1
        if self.answer is not None:
            raise self.answer


def test_only_what_the_api_server_has_judged_is_kept_and_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        client = RightsClient()
        user = viewer.Viewer(cast(ApiClient, client), CommandTarget(namespace="storage"))
        monkeypatch.setattr(user, "may", lambda verb, *_: asyncio.sleep(0, verb == "patch"))
        policy = CompactionPolicy.from_object(policy_object("logs"))

        async def approves(answer: ApiError | None) -> tuple[bool, int]:
            client.answer, client.tries = answer, 0
            return await user.may_approve(policy), client.tries

        away, busy = ApiError("nobody answers"), ApiError("too many requests", status=429)
        assert [await approves(answer) for answer in (away, busy, away)] == [(False, 1)] * 3
        assert await approves(ForbiddenError("no", status=403)) == (False, 1)
        assert await approves(None) == (False, 0)
        user.sweep()
        assert await approves(None) == (False, 0)
        monkeypatch.setattr(viewer, "RIGHTS_SECONDS", 0.0)
        user.sweep()
        assert not user._rights
        assert await approves(None) == (True, 1)

    asyncio.run(test())


def test_files_of_others_are_as_they_were_published() -> None:
    """And no file is served that is not of the package, nor is one of the package forgotten."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}
    assert found == VENDORED
    assert {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()} == set(CONTENT)
    notice = (ROOT / "NOTICE").read_text()
    assert [name for name in ("Preact 10 (MIT)", "htm 3.1.1 (Apache", "uPlot 1.6.32 (MIT)") if name not in notice] == []


def test_the_deployment_is_started_with_options_that_there_are() -> None:
    (deployment,) = yaml.safe_load_all((COMPONENT / "deployment.yaml").read_text())
    console, _ = deployment["spec"]["template"]["spec"]["containers"]
    verb, *options = console["args"]
    with command.make_context(verb, options) as context:
        assert context.params["behind_proxy"]
        assert context.params["counted_groups"] == tuple(
            name for rule in _role()["rules"] for name in rule.get("resourceNames", ())
        )
        (settings,) = yaml.safe_load_all((COMPONENT / "settings.yaml").read_text())
        assert f'upstreams = ["http://127.0.0.1:{context.params["port"]}"]' in settings["data"]["oauth2-proxy.cfg"]


def _role() -> Any:
    return next(item for item in yaml.safe_load_all((COMPONENT / "account.yaml").read_text()) if "rules" in item)


def test_no_argument_of_a_process_holds_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--open` gives the browser a file that its user alone may read."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with (tmp_path / "page.html").open("w") as page:
        os.chmod(page.name, 0o600)
        open_in_browser(page, "http://127.0.0.1:1/#token=secret")
        assert "url=http://127.0.0.1:1/#token=secret" in Path(page.name).read_text()
    assert opened == [(tmp_path / "page.html").as_uri()]
