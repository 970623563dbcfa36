"""The kinds this project reads or writes, as plain descriptors from which URL paths are derived."""

from dataclasses import dataclass
from typing import Any

from compaction.api.names import (
    CATALOG_KIND,
    CATALOG_PLURAL,
    GROUP,
    JOB_KIND,
    JOB_PLURAL,
    POLICY_KIND,
    POLICY_PLURAL,
    VERSION,
)

#: A JSON object as the API server sends it. Parsed into models at the boundary of the pure layers.
Obj = dict[str, Any]


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


COMPACTION_POLICIES = Resource(GROUP, VERSION, POLICY_PLURAL, POLICY_KIND)
COMPACTION_JOBS = Resource(GROUP, VERSION, JOB_PLURAL, JOB_KIND)
CATALOG_COMPACTIONS = Resource(GROUP, VERSION, CATALOG_PLURAL, CATALOG_KIND)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("", "v1", "events", "Event")
PODS = Resource("", "v1", "pods", "Pod")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
KUBEFLOW_APPLICATIONS = Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")
APACHE_APPLICATIONS = Resource("spark.apache.org", "v1", "sparkapplications", "SparkApplication")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
