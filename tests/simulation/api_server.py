"""The API server: objects with resourceVersions, compare-and-set, status subresources, preconditions, watch history.

Only what the project's kinds rely on, with the server's rules: a write that changes nothing makes no version; PUT of an
object ignores its status and PUT of a status everything else; a name that is taken is AlreadyExists, another version
Conflict, a history that was compacted away Expired. Faults are not here: they belong to the way to the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compaction.kube.client.transport import Request

Obj = dict[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the history. `old` is what watchers of a selector saw before."""

    version: int
    type: str
    plural: str
    new: Obj | None
    old: Obj | None


class Refused(Exception):
    """An answer other than 2xx."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    @property
    def body(self) -> str:
        return json.dumps({"kind": "Status", "code": self.code, "reason": self.reason, "message": str(self)})


def copied(obj: Obj) -> Obj:
    answer: Obj = json.loads(json.dumps(obj))
    return answer


@dataclass
class ApiServer:
    """`clock` gives creationTimestamps; `garbage_collector`: owners take their children along when they go."""

    clock: Callable[[], str]
    garbage_collector: bool = False
    version: int = 100
    horizon: int = 0
    objects: dict[tuple[str, str], Obj] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    uids: int = 0

    def handle(self, request: Request) -> Obj:
        """Carry out a request as it arrives. Raises Refused."""
        plural, name, sub = _parse(request.path)
        body: Any = request.body
        match request.method:
            case "GET" if name:
                return copied(self._existing(plural, name))
            case "GET":
                return self._list(plural, (request.query or {}).get("labelSelector"))
            case "POST":
                return self._create(plural, copied(body))
            case "PUT":
                return self._replace(plural, name, copied(body), sub)
            case "PATCH":
                return self._patch(plural, name, copied(body), sub)
            case "DELETE":
                return self._delete(plural, name, (body or {}).get("preconditions") or {})
        raise Refused(405, "MethodNotAllowed", request.method)

    def get(self, plural: str, name: str) -> Obj | None:
        """For the simulation itself: the stored object (not to be changed)."""
        return self.objects.get((plural, name))

    def all(self, plural: str) -> list[Obj]:
        """For the simulation itself: the stored objects of a kind, by name."""
        return [self.objects[key] for key in sorted(self.objects) if key[0] == plural]

    def edit(self, plural: str, name: str, change: Callable[[Obj], None]) -> None:
        """Somebody with kubectl changes an object."""
        if (obj := self.get(plural, name)) is not None:
            after = copied(obj)
            change(after)
            self._store(plural, after, obj)

    def add(self, plural: str, body: Obj) -> None:
        """Somebody with kubectl creates an object, unless there is one of that name."""
        if self.get(plural, body["metadata"]["name"]) is None:
            self._create(plural, body)

    def remove(self, plural: str, name: str) -> None:
        """Somebody with kubectl deletes an object."""
        if self.get(plural, name) is not None:
            self._delete(plural, name, {})

    def compact(self) -> None:
        """Forget the history: watches from an older version are Expired."""
        self.horizon = self.version

    # -- verbs -------------------------------------------------------------------------------------------------------

    def _existing(self, plural: str, name: str) -> Obj:
        obj = self.objects.get((plural, name))
        if obj is None:
            raise Refused(404, "NotFound", f"{plural} {name!r} not found")
        return obj

    def _list(self, plural: str, selector: str | None) -> Obj:
        items = [copied(obj) for obj in self.all(plural) if matches(obj, selector)]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _create(self, plural: str, body: Obj) -> Obj:
        metadata = body["metadata"]
        if (plural, metadata["name"]) in self.objects:
            raise Refused(409, "AlreadyExists", f"{plural} {metadata['name']!r} already exists")
        self.uids += 1
        body["metadata"] = {
            **metadata,
            "uid": f"00000000-0000-0000-0000-{self.uids:012d}",
            "generation": 1,
            "creationTimestamp": self.clock(),
        }
        if plural.startswith("compaction"):
            body["status"] = {"observedGeneration": -1}
        return copied(self._store(plural, body, None))

    def _replace(self, plural: str, name: str, body: Obj, sub: str | None) -> Obj:
        old = self._existing(plural, name)
        given, known = body["metadata"], old["metadata"]
        if given.get("uid") not in (None, known["uid"]):
            raise Refused(409, "Conflict", f"{plural} {name!r}: another uid")
        if given.get("resourceVersion") not in (None, known["resourceVersion"]):
            raise Refused(409, "Conflict", f"{plural} {name!r}: the object has been modified")
        if sub == "status":
            return self._written(plural, {**old, "status": body.get("status", {})}, old)
        kept = {key: known[key] for key in ("uid", "generation", "creationTimestamp", "resourceVersion")}
        after = {**body, "metadata": {**given, **kept}}
        if plural.startswith("compaction"):
            after["status"] = old.get("status", {})
        return self._written(plural, after, old)

    def _patch(self, plural: str, name: str, body: Obj, sub: str | None) -> Obj:
        old = self._existing(plural, name)
        return self._written(plural, _merged(old, body), old)

    def _delete(self, plural: str, name: str, preconditions: Obj) -> Obj:
        old = self._existing(plural, name)
        for field_name in ("uid", "resourceVersion"):
            wanted = preconditions.get(field_name)
            if wanted is not None and wanted != old["metadata"][field_name]:
                raise Refused(409, "Conflict", f"{plural} {name!r}: the {field_name} in the precondition is another")
        self.version += 1
        del self.objects[plural, name]
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._tell(Change(self.version, "DELETED", plural, None, last))
        if self.garbage_collector:
            self._collect(old["metadata"]["uid"])
        return {"kind": "Status", "status": "Success", "metadata": {}}

    def _collect(self, uid: str) -> None:
        for (plural, name), obj in sorted(self.objects.items()):
            owners = [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ()]
            if uid in owners and (plural, name) in self.objects:
                self._delete(plural, name, {})

    def _written(self, plural: str, after: Obj, old: Obj) -> Obj:
        if after == old:
            return copied(old)
        if after.get("spec") != old.get("spec"):
            after["metadata"] = {**after["metadata"], "generation": old["metadata"]["generation"] + 1}
        return copied(self._store(plural, after, old))

    def _store(self, plural: str, obj: Obj, old: Obj | None) -> Obj:
        self.version += 1
        obj["metadata"] = {**obj["metadata"], "resourceVersion": str(self.version)}
        self.objects[plural, obj["metadata"]["name"]] = obj
        self._tell(Change(self.version, "MODIFIED" if old is not None else "ADDED", plural, obj, old))
        return obj

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        for listener in tuple(self.listeners):
            listener(change)


def seen_as(change: Change, selector: str | None) -> tuple[str, Obj] | None:
    """How a watcher with a selector sees a change: an object that no longer matches is deleted for it."""
    before = change.old is not None and matches(change.old, selector)
    if change.new is None or not matches(change.new, selector):
        if not before:
            return None
        gone = change.new if change.new is not None else change.old
        assert gone is not None, "a change has an object"
        return "DELETED", gone
    return ("MODIFIED" if before else "ADDED"), change.new


def matches(obj: Obj, selector: str | None) -> bool:
    """Equality and existence terms of a label selector."""
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, (selector or "").split(",")):
        key, equals, value = term.partition("=")
        if (labels.get(key) != value) if equals else (key not in labels):
            return False
    return True


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _parse(path: str) -> tuple[str, str, str | None]:
    """(plural, name, subresource) of a URL path; namespaces are all one here."""
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    if parts[0] == "namespaces":
        parts = parts[2:]
    plural, name, sub = [*parts, "", ""][:3]
    return plural, name, sub or None
