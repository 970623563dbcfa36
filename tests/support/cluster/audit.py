"""What the accounts of a control plane really did, from the API server's audit log; and what roles allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Everybody may ask what they may do (the built-in role system:basic-user).
FOR_EVERYBODY = frozenset({"selfsubjectaccessreviews.authorization.k8s.io", "selfsubjectreviews.authentication.k8s.io"})


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """One verb on one resource (`plural[/subresource]`, with its group), as a rule of a role names it."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def account(namespace: str, name: str) -> str:
    """A service account as the API server calls its user."""
    return f"system:serviceaccount:{namespace}:{name}"


def uses(
    audit_log: Path, user: str, *, by: Callable[[str], bool] = lambda agent: True
) -> tuple[frozenset[Use], frozenset[Use]]:
    """What a user did, and what it was refused for want of a permission. `by`: which user agents count."""
    done: set[Use] = set()
    refused: set[Use] = set()
    with audit_log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                break  # half written
            if user not in line:
                continue  # most of the log: parsing it takes longer than all else here
            entry = json.loads(line)
            target = entry.get("objectRef") or {}
            # Without a name: a request whose credentials were not accepted, as by a server that has just started.
            if entry["user"].get("username") != user or "resource" not in target:
                continue  # discovery is everybody's
            if not by(entry.get("userAgent", "")):
                continue
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            use = Use(target.get("apiGroup", ""), resource, entry["verb"])
            if f"{use.resource}.{use.group}" in FOR_EVERYBODY:
                continue
            (refused if entry.get("responseStatus", {}).get("code") == 403 else done).add(use)
    return frozenset(done), frozenset(refused)


def granted(roles: Iterable[Mapping[str, Any]]) -> frozenset[Use]:
    """Every rule of the roles, verb by verb."""
    return frozenset(
        Use(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def roles_of(objects: Iterable[Mapping[str, Any]], service_account: str) -> list[Mapping[str, Any]]:
    """The roles that the bindings among the objects give to a service account."""
    objects = list(objects)
    bound = {
        (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in objects
        if binding["kind"].endswith("RoleBinding")
        for subject in binding["subjects"]
        if (subject["kind"], subject["name"]) == ("ServiceAccount", service_account)
    }
    return [found for found in objects if (found["kind"], found["metadata"]["name"]) in bound]
