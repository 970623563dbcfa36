"""A user's pod template merged into ours: nothing of either is lost, and where both speak the user's word counts.

The rules are those of a strategic merge where it matters: maps by key; containers by name, recursively; volumes,
variables and mounts by their key, as wholes (two kinds of source in one would be refused); tolerations and the like
are added up; any other list is replaced.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from compaction.kube.client.resources import Obj
from compaction.kube.errors import LaunchError

WORKER_CONTAINER: Final = "worker"
"""What a user's template calls the container that runs Spark, whatever a backend calls it."""
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
"""What Spark and both Spark operators call the containers they look for."""

_MERGED: Final = {"containers": "name", "initContainers": "name"}
_KEYED: Final = {
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "hostAliases": "ip",
}
_ADDED: Final = frozenset({"tolerations", "envFrom", "topologySpreadConstraints", "supplementalGroups"})
_WHERE: Final = "spec.workers.podTemplate.spec"


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, where: str = _WHERE) -> Obj:
    """`ours` with `theirs` merged in, as new objects. Raises LaunchError naming a member of another form than ours."""
    result: Obj = {**ours}
    for key, value in theirs.items():
        path = f"{where}.{key}"
        if key in _MERGED or key in _KEYED or key in _ADDED:
            result[key] = _merged_list(key, result.get(key) or [], value, where=path)
        elif isinstance(result.get(key), Mapping):
            if not isinstance(value, Mapping):
                raise LaunchError(f"{path} must be an object, with members of its own")
            result[key] = merged(result[key], value, where=path)
        else:
            result[key] = value
    return result


def _merged_list(key: str, ours: Sequence[Any], theirs: Any, *, where: str) -> list[Any]:
    if not isinstance(theirs, list):
        raise LaunchError(f"{where} must be a list")
    if key in _ADDED:
        return [*ours, *(item for item in theirs if item not in ours)]
    name = _MERGED.get(key) or _KEYED[key]
    found = {item[name]: item for item in ours}
    for number, item in enumerate(theirs):
        here = f"{where}[{number}]"
        if not isinstance(item, Mapping) or not isinstance(item.get(name), str | int):
            raise LaunchError(f"{here} must be an object with {name}")
        known = found.get(item[name])
        found[item[name]] = merged(known, item, where=here) if known is not None and key in _MERGED else dict(item)
    return list(found.values())


def with_user_template(spec: Obj, theirs: Mapping[str, Any], *, container: str) -> Obj:
    """Our pod specification (its first container runs Spark) with the user's merged in; the container is named
    `container` in the end, and stays the first.
    """
    ours = {**spec, "containers": [{**spec["containers"][0], "name": WORKER_CONTAINER}, *spec["containers"][1:]]}
    result = merged(ours, theirs)
    first, *others = result["containers"]
    # What is run is not the template's to say: a worker that runs something else announces itself to nobody.
    kept = {key: ours["containers"][0][key] for key in ("command", "args") if key in ours["containers"][0]}
    first = {key: value for key, value in first.items() if key not in ("command", "args")} | kept
    return result | {"containers": [first | {"name": container}, *others]}
