"""`debug`: one archive with what a person who helps needs to know, and without secrets.

It holds the objects of compaction with their Leases and Events, our pods and the ends of their logs, what `check`
finds, and versions. Secrets are never read. Of what is read, values of environment variables, values whose names say
that they are secret, and whatever looks like a credential in any text are replaced. What this user may not read is left
out and named in the archive.

Exit codes: 0 written; 1 the cluster does not answer, or the file cannot be written; 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.names import GROUP, LABEL_APP, WORKER_APP
from compaction.api.text.printing import REDACTED, format_bytes, plural, redacted
from compaction.cli.cluster.check import OPERATOR_APP, checks
from compaction.cli.cluster.flags import CommandTarget, cluster_options

if TYPE_CHECKING:
    from compaction.kube.client.api import ApiClient
    from compaction.kube.client.transport import Resource

LOG_LINES: Final = 2000
LOG_BYTES: Final = 512 << 10
"""Of the end of each log: what happened last is why a user asks."""
_SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|credential|signature|(access|account|api|private)[._-]?key", re.IGNORECASE
)
_NAMES_ONE: Final = re.compile(r"(name|names|namespace|ref|file|path|mode|seconds|policy)$", re.IGNORECASE)
"""Ends of fields that say which Secret is meant, such as credentialsSecretName, and hold nothing of it."""
_UNINTERESTING: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_README: Final = """What `kubectl compaction debug` found at {now}.

objects/   compaction's own objects, Leases, Events and pods, one file per kind and namespace
logs/      the end of the log of each container of the operator and of workers, also of the one before it
check.json, versions.json

Secrets were not read. Values of environment variables, fields whose names say that they are secret, and text that
looks like a credential are {redacted}. Names of namespaces, policies, paths and hosts are as they are: look the archive
through before you give it away.
{missing}"""


@dataclass(slots=True)
class DebugBundle:
    """Files by name, and in words what could not be read."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, content: Any) -> None:
        """Text as it is, anything else as JSON; without secrets either way."""
        text = content if isinstance(content, str) else json.dumps(without_secrets(content), indent=1, default=str)
        self.files[name] = (redacted(text) if isinstance(content, str) else text).encode(errors="backslashreplace")

    def archive(self, path: Path, now: datetime) -> int:
        """Write the archive, readable by its owner only and complete or not at all; returns its size in bytes."""
        missing = "\n".join(("\nNot in it:", *(f"* {text}" for text in self.missing))) if self.missing else ""
        self.add(
            "README.txt", _README.format(now=now.isoformat(timespec="seconds"), redacted=REDACTED, missing=missing)
        )
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, content in sorted(self.files.items()):
                    entry = tarfile.TarInfo(f"compaction-debug/{name}")
                    entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
                    archive.addfile(entry, io.BytesIO(content))
            size = os.stat(unfinished).st_size
            os.replace(unfinished, path)
        except BaseException:  # an interrupt as well: half an archive is none, and its name says nothing
            os.unlink(unfinished)
            raise
        return size


@click.command("debug")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Archive to write, such as bundle.tgz; one that is there is replaced.",
)
@cluster_options(all_namespaces=True)
def command(*, path: Path, target: CommandTarget) -> None:
    """Collect objects, Leases, Events, logs and versions into one archive, without secrets.

    It covers the namespace, or with -A all of them, and those of the operators. Nothing is sent anywhere.

    Example: kubectl compaction debug -A -o bundle.tgz
    """
    from compaction.cli.cluster.access import connect
    from compaction.kube.client.api import ApiClient

    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"there is no directory {path.absolute().parent}")
    connection = connect(target)

    async def collecting() -> DebugBundle:
        async with ApiClient(connection, user_agent="kubectl-compaction") as client:
            return await collect(client, None if target.all_namespaces else connection.namespace)

    bundle = asyncio.run(collecting())
    size = bundle.archive(path, datetime.now(UTC))
    click.echo(f"{path}: {plural(len(bundle.files), 'file')}, {format_bytes(size)}; look it through before you send it")
    for text in bundle.missing:
        click.echo(f"not in it: {text}", err=True)


async def collect(client: ApiClient, namespace: str | None) -> DebugBundle:
    """Read everything. `namespace` None: of all of them. Raises ApiUnavailableError when nothing answers."""
    from importlib.metadata import version

    from compaction.cli.cluster.access import ClusterAccess
    from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, EVENTS, LEASES
    from compaction.kube.client.transport import APACHE_APPLICATIONS, CATALOG_COMPACTIONS, KUBEFLOW_APPLICATIONS

    bundle = DebugBundle()
    server = await client.request("GET", "/version")
    leases, _ = await ClusterAccess(client, CommandTarget(namespace=namespace)).coordinators()
    operators = sorted({lease.namespace for lease in leases or ()})
    bundle.add(
        "versions.json",
        {
            "client": version("compaction-operator"),
            "server": server,
            "operators": {lease.namespace: dict(lease.annotations) for lease in leases or ()},
        },
    )
    bundle.add(
        "check.json",
        [
            {"check": item.name, "result": item.result.value, "message": item.message}
            for item in await checks(client, namespace)
        ],
    )
    spaces: Sequence[str | None] = [None] if namespace is None else sorted({namespace, *operators})
    kinds = (COMPACTION_POLICIES, COMPACTION_JOBS, CATALOG_COMPACTIONS, LEASES, EVENTS)
    # The operator's own namespace has its Lease, its Events and its log, and mostly no policy.
    for space in spaces:
        for resource in (*kinds, KUBEFLOW_APPLICATIONS, APACHE_APPLICATIONS):
            await _add_objects(bundle, client, resource, space)
        await _add_pods(bundle, client, space)
    return bundle


async def _add_objects(bundle: DebugBundle, client: ApiClient, resource: Resource, namespace: str | None) -> None:
    from compaction.errors import ApiError, NotFoundError

    place = namespace or "all namespaces"
    try:
        found = await client.list(resource, namespace=namespace)
    except NotFoundError:
        # That no Spark operator is installed says nothing; that our own kinds are missing is the finding.
        if resource.group == GROUP:
            bundle.missing.append(f"{resource.plural}.{resource.group}: the cluster has no such kind")
        return
    except ApiError as error:
        bundle.missing.append(f"{resource.plural} of {place}: {error.said}")
        return
    items = [item for item in found.items if resource.group or _is_ours(item)]
    by_space: dict[str, list[Any]] = {}
    for item in items:
        by_space.setdefault(item["metadata"].get("namespace", ""), []).append(item)
    name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    for space, objects in by_space.items():
        bundle.add(f"objects/{space}/{name}.json", objects)


def _is_ours(event: Mapping[str, Any]) -> bool:
    """Events about objects of ours, and about pods, of which some are ours."""
    about = event.get("involvedObject") or {}
    return str(about.get("apiVersion", "")).startswith(f"{GROUP}/") or about.get("kind") == "Pod"


async def _add_pods(bundle: DebugBundle, client: ApiClient, namespace: str | None) -> None:
    from compaction.errors import ApiError
    from compaction.kube.client.api import PODS

    try:
        listed = await client.list(PODS, namespace=namespace, labels=f"{LABEL_APP} in ({OPERATOR_APP},{WORKER_APP})")
    except ApiError as error:
        bundle.missing.append(f"pods and logs of {namespace or 'all namespaces'}: {error.said}")
        return
    for pod in listed.items:
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        bundle.add(f"objects/{space}/pods/{name}.json", pod)
        for container, previous in _containers(pod):
            end = "-previous" if previous else ""
            try:
                text = await client.pod_log(
                    space, name, container=container, previous=previous, lines=LOG_LINES, limit_bytes=8 * LOG_BYTES
                )
            except ApiError as error:
                bundle.missing.append(f"log of {space}/{name} {container}{end}: {error.said}")
                continue
            if text:
                bundle.add(f"logs/{space}/{name}/{container}{end}.log", text[-LOG_BYTES:])
            else:
                # What the API server answers of a pod without a node as well.
                bundle.missing.append(
                    f"log of {space}/{name} {container}{end}: it is empty, or nothing has started yet"
                )


def _containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the containers, and those that ran before them."""
    restarted = {
        status["name"]
        for status in pod.get("status", {}).get("containerStatuses") or ()
        if status.get("restartCount", 0) > 0
    }
    for container in pod["spec"]["containers"]:
        yield container["name"], False
        # Why it restarted stands at the end of the log before.
        if container["name"] in restarted:
            yield container["name"], True


def without_secrets(value: Any) -> Any:
    """The same JSON without what may be secret. Names of Secrets and of their keys stay: they say which are meant."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    # A variable of a container: {name, value}. What is not secret in it does not matter enough to guess.
    if isinstance(value.get("value"), str) and "name" in value:
        value = value | {"value": REDACTED}
    return {key: _member(key, item) for key, item in value.items() if key not in _UNINTERESTING}


def _member(key: str, value: Any) -> Any:
    # Numbers are never secrets here: a fencing token is one.
    is_secret = isinstance(value, str) and _SECRET.search(key) and not _NAMES_ONE.search(key)
    return REDACTED if is_secret else without_secrets(value)
