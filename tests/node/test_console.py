"""The console of components/console on a node: the shipped Deployment, beside a released oauth2-proxy in one pod."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import yaml

from node.on_node import NAMESPACE, ROOT, Installation
from node.releases import OAUTH2_PROXY
from support.clocks import TIMEOUT_FLAG, eventually
from tools.node.running import import_archive

COMPONENT: Final = ROOT / "manifests" / "components" / "console"
HOST: Final = "console.example.com"
PASSWORDS: Final = {"alice": "alice's own"}
PORT, CONSOLE_PORT = 4180, 8089

CLIENT: Final = """
import http.client, json, sys
address, port, method, path, headers, body = json.load(sys.stdin)
server = http.client.HTTPConnection(address, port, timeout=60)
try:
    server.request(method, path, body, headers)
    answer = server.getresponse()
    stream = answer.headers.get_content_type() == "text/event-stream"
    # A stream has no end: what counts is that its first event comes through.
    said = b"".join(iter(answer.readline, b"\\n")) if stream else answer.read()
    found = answer.status, dict(answer.headers), said.decode()
except ConnectionRefusedError:
    found = 0, {}, "refused"
json.dump(found, sys.stdout)
"""
"""One request from the node's network, as an Ingress there would: status, headers, content."""


def settings() -> str:
    """The shipped ones, with users of a file, because no issuer is reached from here: nothing of it is asked before
    somebody comes from there.
    """
    [shipped] = yaml.safe_load_all((COMPONENT / "settings.yaml").read_text())
    text: str = shipped["data"]["oauth2-proxy.cfg"]
    issuer = "https://issuer.example.com"
    more = {
        "skip_oidc_discovery": True,
        "login_url": f"{issuer}/login",
        "redeem_url": f"{issuer}/token",
        "oidc_jwks_url": f"{issuer}/keys",
        "htpasswd_file": "/etc/oauth2-proxy/htpasswd",
        "htpasswd_user_groups": ["compaction-users"],
    }
    return text + "".join(f"{name} = {json.dumps(value)}\n" for name, value in more.items())


def passwords() -> str:
    hashes = {name: base64.b64encode(hashlib.sha1(word.encode()).digest()) for name, word in PASSWORDS.items()}
    return "".join(f"{name}:{{SHA}}{value.decode()}\n" for name, value in hashes.items())


@contextmanager
def console(installation: Installation, directory: Path, report: Callable[[str], None]) -> Iterator[str]:
    """The address of its pod; afterwards it is gone."""
    import_archive(installation.node, OAUTH2_PROXY.archive, report=report)
    directory.mkdir()
    # The alphabet of URLs: what the proxy does not decode it takes as it is, and then it is too long.
    secret = base64.urlsafe_b64encode(os.urandom(32)).decode()
    from_environment = {"CLIENT_ID": "console", "CLIENT_SECRET": "nobody", "COOKIE_SECRET": secret}
    literals = [f"--from-literal=OAUTH2_PROXY_{name}={value}" for name, value in from_environment.items()]
    installation.kubectl("create", "secret", "generic", "compaction-console-proxy", *literals)
    data = {"oauth2-proxy.cfg": settings(), "htpasswd": passwords()}
    patch = [{"op": "replace", "path": "/data", "value": data}]
    document = {
        "namespace": NAMESPACE,
        "components": [os.path.relpath(COMPONENT, directory)],
        "patches": [{"target": {"kind": "ConfigMap"}, "patch": yaml.safe_dump(patch)}],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(document))
    installation.kubectl("apply", "--server-side", "-k", str(directory))
    try:
        installation.kubectl("rollout", "status", "deployment/compaction-console", TIMEOUT_FLAG)
        [pod] = installation.running("app.kubernetes.io/component=console")
        yield pod["status"]["podIP"]
    except BaseException:
        for name in ("console", "proxy"):
            report(installation.kubectl("logs", "deployment/compaction-console", "-c", name, "--tail=20", check=False))
        raise
    installation.kubectl("delete", "-k", str(directory))
    installation.kubectl("delete", "secret", "compaction-console-proxy")
    eventually(lambda: not installation.pods("app.kubernetes.io/component=console"), "the console to be gone")


Answer = tuple[int, dict[str, str], str]
Headers = Mapping[str, str]
OURS: Final = {"X-Compaction-Console": "1"}
"""What only a page of the console sends."""


class Browser:
    """What comes through an Ingress on the node."""

    def __init__(self, installation: Installation, address: str) -> None:
        self.first, self.address = installation.node.first, address

    def ask(self, method: str, path: str, headers: Headers, body: str | None = None, *, port: int = PORT) -> Answer:
        sent = {"Host": HOST, "X-Forwarded-Proto": "https", **headers}
        command = ["nsenter", f"--target={self.first}", "--net", "--", sys.executable, "-c", CLIENT]
        asked = json.dumps([self.address, port, method, path, sent, body])
        answer = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
        status, given, said = json.loads(answer.stdout)
        return status, given, said

    def sign_in(self, user: str) -> Headers:
        """The headers of a user's page from then on."""
        form = urlencode({"username": user, "password": PASSWORDS[user], "rd": "/"})
        kind = "application/x-www-form-urlencoded"
        status, given, said = self.ask("POST", "/oauth2/sign_in", {"Content-Type": kind}, form)
        assert status == 302, said
        return OURS | {"Cookie": given["Set-Cookie"].partition(";")[0]}

    def press_scan(self, user: Headers, name: str) -> tuple[int, dict[str, str]]:
        """What the page of a policy is answered."""
        body = json.dumps({"act": "scan", "kind": "policy", "namespace": NAMESPACE, "name": name})
        status, _, said = self.ask("POST", "/api/act", {**user, "Content-Type": "application/json"}, body)
        return status, json.loads(said)


def test_users_of_the_proxy_see_and_do_what_the_cluster_lets_them(
    installation: Installation, tmp_path: Path, report: Callable[[str], None]
) -> None:
    installation.apply_policy("shown", suspend=True)
    with console(installation, tmp_path / "console", report) as address:
        browser = Browser(installation, address)
        # Nobody comes in who has not signed in, and nobody reaches the console past its proxy.
        assert browser.ask("GET", "/api/me", OURS | {"X-Forwarded-User": "alice"})[0] in (401, 403)
        assert browser.ask("GET", "/healthz", {}, port=CONSOLE_PORT)[::2] == (0, "refused")
        alice = browser.sign_in("alice")
        assert json.loads(browser.ask("GET", "/api/me", alice)[2])["user"] == "alice"
        pretended = {"X-Forwarded-User": "bob", "X-Forwarded-Groups": "system:masters"}
        assert json.loads(browser.ask("GET", "/api/me", {**alice, **pretended})[2])["user"] == "alice"
        # What she may do is the cluster's to say: nothing, and then what her group may.
        status, said = browser.press_scan(alice, "shown")
        assert (status, 'User "alice" cannot patch' in said["message"]) == (403, True), said
        role = ("--clusterrole=compaction-editor", "--group=compaction-users")
        installation.kubectl("create", "rolebinding", "console-users", *role)
        status, said = eventually(
            lambda: found if (found := browser.press_scan(alice, "shown"))[0] == 200 else None,
            "her group's role to count",
        )
        assert said == {"said": "scan requested"}
        assert "compaction.dev/scan" in installation.cluster.policy("shown")["metadata"]["annotations"]
        # A page is a stream: its first event comes while it is open.
        status, given, event = browser.ask("GET", f"/api/stream/policy/{NAMESPACE}/shown", alice)
        assert (status, given["Content-Type"].partition(";")[0]) == (200, "text/event-stream")
        assert "Suspended" in event
        installation.kubectl("delete", "rolebinding", "console-users")
    installation.kubectl("delete", "cpol", "shown")


def test_the_release_is_the_one_of_the_deployment() -> None:
    [deployment] = yaml.safe_load_all((COMPONENT / "deployment.yaml").read_text())
    images = [container["image"] for container in deployment["spec"]["template"]["spec"]["containers"]]
    assert images == ["compaction-operator:0.1.0", OAUTH2_PROXY.image]
