"""What a person sees and does in a test: logs under a root, a policy applied, objects of a namespace."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

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
from compaction.local.cluster.control_plane import AdminAnswer, AdminClient
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.reading.reader import log_fingerprint
from compaction.segments.reading.view import open_log
from support.time.waiting import eventually

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
