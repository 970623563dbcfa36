"""Which launcher a worker gets: what the policy says, or what the cluster offers. Pure.

`auto` takes the Spark operator that is there, because a cluster with one runs Spark through it; then pods of
our own where the operator is a pod itself; then processes beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.api.enums import LauncherType
from compaction.kube.client.resources import APACHE_APPLICATIONS, KUBEFLOW_APPLICATIONS, PODS, Resource
from compaction.kube.errors import LaunchError


class Availability(StrEnum):
    """What the API server said about a kind of object."""

    ABSENT = "absent"  # it does not serve the kind
    FORBIDDEN = "forbidden"  # it does, and the operator may not list it
    USABLE = "usable"


KINDS: Final[Mapping[LauncherType, Resource]] = {
    LauncherType.KUBEFLOW: KUBEFLOW_APPLICATIONS,
    LauncherType.APACHE: APACHE_APPLICATIONS,
    LauncherType.POD: PODS,
}
"""The objects that launchers create, in the order in which `auto` prefers them."""


@dataclass(frozen=True, slots=True)
class LauncherChoice:
    """What can be used here. `in_pod`: the operator runs in a pod."""

    kinds: Mapping[LauncherType, Availability] = field(default_factory=lambda: MappingProxyType({}))
    in_pod: bool = False

    def of(self, launcher: LauncherType) -> Availability:
        """Whether a launcher's kind can be used."""
        return self.kinds.get(launcher, Availability.ABSENT)


def choose(wanted: LauncherType, offer: LauncherChoice) -> LauncherType:
    """The launcher to use. Raises LaunchError when the one that the policy names cannot be used, with what to do."""
    if wanted is LauncherType.AUTO:
        usable = (one for one in KINDS if offer.of(one) is Availability.USABLE)
        found = next((one for one in usable if one is not LauncherType.POD or offer.in_pod), LauncherType.PROCESS)
        if found is not LauncherType.PROCESS or not offer.in_pod:
            return found
        wanted = LauncherType.POD  # the operator's image has no Spark: a process of it could not work
    if wanted is LauncherType.PROCESS and offer.in_pod:
        raise LaunchError(
            "workers cannot be processes here: they would run in the operator's own pod, as the operator. Set "
            "spec.workers.launcher to auto, or leave it out"
        )
    kind = KINDS.get(wanted)
    if kind is None or offer.of(wanted) is Availability.USABLE:
        return wanted
    name = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    if offer.of(wanted) is Availability.FORBIDDEN:
        raise LaunchError(
            f"workers cannot be started by the launcher {wanted}: the operator's account may not list {name}. Grant it "
            f"get, list, create and delete on {name}, or choose another one in spec.workers.launcher"
        )
    raise LaunchError(
        f"workers cannot be started by the launcher {wanted}: the API server does not serve {name} in version "
        f"{kind.version}. Install that Spark operator, or choose another one in spec.workers.launcher (auto takes what "
        "there is)"
    )
