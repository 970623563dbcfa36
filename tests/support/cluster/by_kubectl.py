"""What a person sees and does in a test: logs under a root, a policy applied, objects of a namespace."""

from __future__ import annotations

import base64
import functools
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import psutil
import pytest
import yaml

from compaction.api.base import timestamp_from_epoch
from compaction.api.names import ANNOTATION_USED_BY, COORDINATOR_LEASE
from compaction.cli.main import main
from compaction.kube.client.api import PatchKind
from compaction.kube.client.transport import (
    CATALOG_COMPACTIONS,
    COMPACTION_JOBS,
    COMPACTION_POLICIES,
    EVENTS,
    LEASES,
    PODS,
    Resource,
)
from compaction.leases.record import format_micro_time
from compaction.local.cluster.control_plane import AdminAnswer, AdminClient
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.reading.reader import log_fingerprint
from compaction.segments.reading.view import open_log
from support.clocks import eventually

Object = dict[str, Any]
Objects = list[Object]
"""`Cluster` has a method of the name `list`."""
RBAC: Final = "rbac.authorization.k8s.io"
SHORT: Final = {
    "ccat": CATALOG_COMPACTIONS,
    "cjob": COMPACTION_JOBS,
    "cpol": COMPACTION_POLICIES,
    "event": EVENTS,
    "lease": LEASES,
    "pod": PODS,
}
LOOKED_AT: Final = SHORT | {each.kind: each for each in SHORT.values()}
"""What tests look at and change, by the names that people type and by kind; what they apply may be of any kind that the
API server serves.
"""
TRY_AGAIN: Final = (429, 503)
"""What a server answers that has just started, or has just been given a definition; kubectl tries again, too."""


@dataclass(slots=True)
class LogRoot:
    """Logs under one root, and what was readable in them at the beginning."""

    path: Path
    before: dict[str, str]

    def add(self, name: str, *, pattern: Pattern = Pattern.STRIDED, segments: int = 9, **more: Any) -> Path:
        directory = self.path / name
        generate_log(directory, pattern=pattern, segments=segments, sync=False, **more)
        self.before[name] = self.fingerprint(name)
        return directory

    def fingerprint(self, name: str) -> str:
        """Of everything a reader must still find: index, term, length and CRC of the payload as read now."""
        return log_fingerprint(open_log(self.path / name)).hexdigest()

    def assert_unchanged(self) -> None:
        assert {name: self.fingerprint(name) for name in self.before} == self.before

    def leftovers(self) -> list[str]:
        """Files that only exist while something is under way."""
        endings = (".partial", ".compacting", ".link", ".compaction_group", ".tmp")
        return sorted(str(path) for path in self.path.rglob("*") if path.name.endswith(endings))


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a person can see and do in the test's namespace. kubectl is for what it prints and checks itself; what tests
    apply and look at is asked of the API server: one kubectl is a process and a tenth of a CPU second.
    """

    plane: Any
    namespace: str

    def kubectl(self, *args: str, check: bool = True, input: str | None = None) -> str:
        answer = self.plane.kubectl(*args, namespace=self.namespace, check=check, input=input)
        said: str = answer.stdout + ("" if check else answer.stderr)
        return said

    def list(self, kind: str, *, labels: str = "", fields: str = "") -> Objects:
        """All objects of a kind, of these labels and fields, by their names."""
        selected = urlencode({"labelSelector": labels, "fieldSelector": fields})
        items: Objects = self._read(kind, f"?{selected}")["items"]
        return items

    def policy(self, name: str = "logs") -> Object:
        return self._read("cpol", f"/{name}")

    def catalog(self, name: str = "orders") -> Object:
        return self._read("ccat", f"/{name}")

    def jobs(self) -> Objects:
        return self.list("cjob")

    def leases(self, component: str) -> Objects:
        return self.list("lease", labels=f"compaction.dev/component={component}")

    def await_events(self, *reasons: str) -> None:
        """Until there is an event of each of these reasons: events are written behind the status."""

        def told() -> bool:
            return set(reasons) <= {event["reason"] for event in self.list("event")}

        eventually(told, f"events of {', '.join(reasons)}")

    def _read(self, kind: str, rest: str) -> Object:
        path = LOOKED_AT[kind].path(namespace=self.namespace)
        found: Object = _asked(self.plane.admin, "GET", f"{path}{rest}").json()
        return found

    def _path(self, name: str, subresource: str | None = None) -> str:
        """Of one object: `cpol/logs`."""
        kind, _, own = name.partition("/")
        return LOOKED_AT[kind].path(namespace=self.namespace, name=own, subresource=subresource)

    def apply_policy(self, root: Path, *, name: str = "logs", **spec: Any) -> None:
        self.apply(policy(root, name=name, **spec))

    def apply(self, *documents: Mapping[str, Any]) -> None:
        apply(self.plane.admin, documents, namespace=self.namespace)

    def patch(self, name: str, change: Mapping[str, Any], *, subresource: str | None = None) -> None:
        """Merge a change into an object: `patch("cpol/logs", {"spec": {"suspend": True}})`."""
        path = self._path(name, subresource)
        _asked(self.plane.admin, "PATCH", path, dict(change), content_type=PatchKind.MERGE.value)

    def annotate(self, name: str, **annotations: str) -> None:
        """Annotations of ours, as a person writes them: `annotate("cjob/a", retry="now")`."""
        ours = {f"compaction.dev/{key}": value for key, value in annotations.items()}
        self.patch(name, {"metadata": {"annotations": ours}})

    def delete(self, name: str) -> None:
        """An object, and what it owns with it, if a garbage collector runs."""
        _asked(self.plane.admin, "DELETE", self._path(name))

    def allow_secrets(self, user: str) -> None:
        """The user may read the Secrets of the namespace."""
        rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
        role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "stores"}}
        self.apply(role | {"rules": [rule]})
        bind(self.plane.admin, "stores", user, namespace=self.namespace, kind="Role")

    def await_condition(self, job: str, type_: str) -> None:
        """Until a job has this condition, as `kubectl wait` does."""

        def holds() -> bool:
            return condition(self._read("cjob", f"/{job}"), type_).get("status") == "True"

        eventually(holds, f"job {job} to be {type_}")

    def await_job_state(self, *states: str) -> Object:
        """The first job that is in one of the states."""
        return eventually(
            lambda: next((job for job in self.jobs() if job.get("status", {}).get("state") in states), None),
            f"a job in state {' or '.join(states)}",
            pause=0.1,
        )

    def await_all_succeeded(self, *, at_least: int = 1) -> Objects:
        def done() -> Objects:
            jobs = self.jobs()
            ended = [job for job in jobs if job.get("status", {}).get("state") == "Succeeded"]
            return jobs if len(ended) == len(jobs) >= at_least else []

        return eventually(done, f"{at_least} or more jobs, all Succeeded")

    def await_idle(self, name: str = "logs") -> Object:
        """The policy after it has looked again and found nothing more to do."""

        def idle() -> Object | None:
            found = self.policy(name)
            status = found.get("status", {})
            # Without jobs and debt, but Compacting: its jobs have changed the store since it was looked at.
            compacting = condition(found, "Ready").get("reason") in ("Compacting", "Sensing")
            active = status.get("active", 0) + status.get("queued", 0)
            done = status.get("lastSuccessTime") and status.get("debt", {}).get("bytes") == 0
            return found if done and not active and not compacting else None

        return eventually(idle, f"policy {name} without debt")


def apply(admin: AdminClient, documents: Iterable[Mapping[str, Any]], *, namespace: str) -> None:
    """As `kubectl apply --server-side` does, by one request for each: an unknown field fails the test."""
    for document in documents:
        resource = _served(admin, document["apiVersion"], document["kind"])
        path = resource.path(namespace=namespace, name=document["metadata"]["name"])
        path += "?fieldManager=tests&force=true&fieldValidation=Strict"
        _asked(admin, "PATCH", path, dict(document), content_type=PatchKind.APPLY.value)


def bind(admin: AdminClient, role: str, user: str, *, namespace: str, kind: str = "ClusterRole") -> None:
    """Grant a role in a namespace."""
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{role}-{user}"},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    apply(admin, [binding], namespace=namespace)


@functools.cache
def _served(admin: AdminClient, api_version: str, kind: str) -> Resource:
    """What the server says of a kind, which its definition may just have given it."""
    group, _, version = api_version.rpartition("/")
    root = f"/apis/{api_version}" if group else f"/api/{api_version}"

    def found() -> Resource | None:
        answer = admin.request("GET", root)
        for item in answer.json()["resources"] if answer.ok else []:
            if item["kind"] == kind and "/" not in item["name"]:
                return Resource(group, version, item["name"], kind, namespaced=item["namespaced"])
        return None

    return eventually(found, f"the API server to serve {kind} of {api_version}")


def _asked(admin: AdminClient, method: str, path: str, body: Any = None, **more: str) -> AdminAnswer:
    """The answer of the API server, which says yes."""

    def answer() -> AdminAnswer | None:
        found = admin.request(method, path, body, **more)  # type: ignore[arg-type]
        return None if found.status in TRY_AGAIN else found

    answered = eventually(answer, f"the API server to answer {method} {path}")
    assert answered.ok, f"{method} {path}: {answered.status} {answered.text}"
    return answered


def policy(root: Path, *, name: str = "logs", **spec: Any) -> Object:
    """A policy with short times; `spec` replaces whole parts of it."""
    defaults: Object = {
        "store": {"segmentLogs": {"root": str(root), "include": ["*"]}},
        "trigger": {"interval": "2s"},
        "lease": {"durationSeconds": 5},
        "workers": {"max": 1, "slots": 2, "idleSeconds": 5, "sparkMaster": "local[2]"},
        "cleanup": {"delay": "1h"},
    }
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": name},
        "spec": defaults | spec,
    }


def condition(found: Object, type_: str) -> Object:
    """A condition of an object, or {} when it has none of that type."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == type_), {})


# Secrets written into a cluster, and everything that is said there and beside: no value may be in it.

EVERYBODY = "CompactionPolicy/*, CatalogCompaction/*"


def write_secret(cluster: Cluster, name: str, values: Mapping[str, str], *, used_by: str = EVERYBODY) -> None:
    """Make a Secret, or give it these keys. `used_by`: for whom it is."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    metadata = {"name": name, "annotations": {ANNOTATION_USED_BY: used_by}}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    cluster.apply(body)


def objects_of(cluster: Cluster) -> str:
    """All objects of the namespace but the Secrets themselves, as YAML."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    return cluster.kubectl(
        "get", ",".join(kind for kind in kinds if kind != "secrets"), "-o", "yaml", "--show-managed-fields"
    )


def files_below(*directories: Path) -> bytes:
    """The content of every file, one after the other; what vanishes meanwhile is left out."""
    return b"".join(_content(path) for directory in directories for path in sorted(directory.rglob("*")))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except (FileNotFoundError, ProcessLookupError):
        return b""


def session_of(pid: int) -> Iterable[psutil.Process]:
    """The processes of the session that `pid` leads."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid:
                yield process
        except ProcessLookupError:
            continue


def shown_by(processes: Iterable[psutil.Process]) -> bytes:
    """What everybody sees of processes, and what their user does: command lines and environments."""
    return b"".join(
        _content(Path(f"/proc/{process.pid}/{name}")) for process in processes for name in ("cmdline", "environ")
    )


# Objects with a status that a test writes, as the operator would.


def ago(seconds: float) -> str:
    return timestamp_from_epoch(time.time() - seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def make(cluster: Cluster, document: dict[str, Any], status: dict[str, Any] | None = None) -> None:
    """Create an object, and write its status as the operator would."""
    cluster.apply(document)
    if status is not None:
        kind, name = document["kind"], document["metadata"]["name"]
        write_status(cluster, f"{kind}/{name}", status)


def write_status(cluster: Cluster, name: str, status: dict[str, Any]) -> None:
    cluster.patch(name, {"status": status}, subresource="status")


def coordinator_lease(silent: float) -> dict[str, Any]:
    """The coordinator's Lease, renewed so many seconds ago."""
    renewed = format_micro_time(datetime.now(UTC) - timedelta(seconds=silent))
    spec = {"holderIdentity": "replica-a", "leaseDurationSeconds": 900, "renewTime": renewed}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": COORDINATOR_LEASE},
        "spec": spec,
    }


# People who type `kubectl compaction ...`: each with a kubeconfig and a role of their own.

ROLES = Path(__file__).resolve().parents[3] / "manifests" / "rbac" / "roles.yaml"
PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class _Terminal(io.StringIO):
    name = "<stdin>"

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with a kubeconfig, at a shell in which kubectl finds its plugin."""

    kubectl: Path
    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": str(self.kubeconfig), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}

    def plugin(self, *args: str) -> Answer:
        """`kubectl compaction ARGS`, as a process."""
        command = [str(self.kubectl), "compaction", *args]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.environment, stdin=subprocess.DEVNULL
        )
        assert "Traceback" not in done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def run(self, *args: str, typed: str | None = None) -> Answer:
        """The same in this process, which saves a second each time. `typed`: what is typed at a terminal; None: there
        is none.
        """
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("KUBECONFIG", str(self.kubeconfig))
            patch.setattr("sys.stdin", io.StringIO() if typed is None else _Terminal(typed))
            code = main(list(args))
        return Answer(code, out.getvalue(), err.getvalue())

    def prints(self, *args: str) -> str:
        answer = self.run(*args)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def refused(self, *args: str, code: int = 1) -> str:
        answer = self.run(*args)
        assert answer.returncode == code, answer.stdout + answer.stderr
        return answer.stderr


def exit_code(command: Sequence[str]) -> int:
    """Of `compactor` in this process, also of a command that ends the process itself, as `run` does."""
    try:
        return main(list(command))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def make_user(control_plane: Any, namespace: str, directory: Path, *, role: str) -> User:
    """A user of a namespace with one of the roles we ship, or with none."""
    apply(control_plane.admin, yaml.safe_load_all(ROLES.read_text()), namespace=namespace)
    name = f"{role or 'nobody'}-{namespace}"
    if role:
        bind(control_plane.admin, role, name, namespace=namespace)
    kubeconfig = control_plane.running.kubeconfig_for(name, directory / f"{name}.kubeconfig", namespace=namespace)
    return User(control_plane.binaries.kubectl, kubeconfig)


def columns_of(table: str) -> list[dict[str, str]]:
    """The rows of a table by heading; cells may hold single spaces."""
    head, *lines = table.splitlines()
    starts = [match.start() for match in re.finditer(r"(?<!\S)\S+( \S+)*", head)]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    return [{head[a:b].strip(): line[a:b].strip() for a, b in spans} for line in lines]
