"""The kinds this project reads or writes, as plain descriptors from which URL paths are derived."""

from dataclasses import dataclass
from typing import Any

#: A JSON object as the API server sends it. Parsed into models at the boundary of the pure layers.
Obj = dict[str, Any]

GROUP = "compaction.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True)
class Resource:
    """One served kind. `group` is empty for the core API; `plural` is the name in URLs and in RBAC rules."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`, as in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection or of one object; no namespace on a namespaced kind means all namespaces."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and namespace is None:
                raise ValueError(f"{self.kind} {name} needs a namespace")
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


COMPACTION_POLICIES = Resource(GROUP, VERSION, "compactionpolicies", "CompactionPolicy")
COMPACTION_JOBS = Resource(GROUP, VERSION, "compactionjobs", "CompactionJob")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("", "v1", "events", "Event")
PODS = Resource("", "v1", "pods", "Pod")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

# Labels and annotations of this project's objects (DESIGN §3, §4).
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "compaction-operator"
POLICY_LABEL = f"{GROUP}/policy"
COMPONENT_LABEL = f"{GROUP}/component"
WORKER_LABEL = f"{GROUP}/worker"
SLOTS_ANNOTATION = f"{GROUP}/slots"
PROGRESS_ANNOTATION = f"{GROUP}/progress"
REPORT_ANNOTATION = f"{GROUP}/report"
PID_ANNOTATION = f"{GROUP}/pid"
HOST_ANNOTATION = f"{GROUP}/host"
STOP_ANNOTATION = f"{GROUP}/stop"
