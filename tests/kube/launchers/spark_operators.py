"""The definitions of both Spark operators on the API server, from the reference files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyspark

from compaction.kube.client.transport import Obj
from compaction.local.cluster.control_plane import AdminClient
from compaction.local.processes.process import class_archives
from compaction.worker.spark.settings import find_java, options_to_use
from kube.launchers.kubeflow import released_operator
from support.clocks import TIMEOUT_FLAG, eventually
from support.cluster.control_plane import ControlPlane

DEFINITIONS = ("sparkapplications.sparkoperator.k8s.io", "sparkapplications.spark.apache.org")


def is_served(admin: AdminClient, definition: str) -> bool:
    """Whether a definition is on the server, established, and not about to go."""
    answer = admin.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition}")
    if answer.status == 404:
        return False
    found = answer.json()
    conditions = {item["type"]: item["status"] for item in found.get("status", {}).get("conditions") or ()}
    return conditions.get("Established") == "True" and "deletionTimestamp" not in found["metadata"]


def define(kubectl: Any, fixtures: Path) -> None:
    """Put the definitions on the server and wait until it serves them."""
    kubectl("apply", "--server-side", "-f", str(fixtures / "spark-operators"))
    wait = ("wait", "--for=condition=Established", TIMEOUT_FLAG, "crd", *DEFINITIONS)
    # kubectl gives up at once on an object without conditions, which it has for a moment.
    eventually(lambda: kubectl(*wait, check=False).returncode == 0, "the definitions to be served")


# The real spark-submit and the real driver of Spark against an API server without kubelets: pods stay as they are
# made, and the test plays the node.

SHORT_LIVED: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
"""Of a JVM that lives for seconds, as workers have them: half of its CPU time is a compiler's that pays off later."""


@dataclass(frozen=True, slots=True)
class Submitter:
    """Spark as Kubeflow's operator runs it, for the applications of one namespace."""

    plane: ControlPlane
    namespace: str

    @property
    def environment(self) -> dict[str, str]:
        """What the operator's pod has: where Spark, Java and the API server are."""
        address = urlsplit(self.plane.url)
        return {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "JAVA_HOME": str(find_java().home),
            "KUBECONFIG": str(self.plane.kubeconfig),
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
            "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} {options_to_use(class_archives(), find_java())}",
        }

    def submit(self, application: Mapping[str, Any]) -> str:
        """What Kubeflow's controller does with a new application; what it would write as its error."""
        return released_operator.submit(application, self.environment)

    def objects(self, kind: str, **labels: str) -> list[Obj]:
        """Objects of the core group in the namespace that have these labels."""
        answer = self.plane.admin.request("GET", f"/api/v1/namespaces/{self.namespace}/{kind}")
        assert answer.ok, answer.text
        items: list[Obj] = answer.json()["items"]
        return [item for item in items if labels.items() <= (item["metadata"].get("labels") or {}).items()]


def differences(template: Any, made: Any, where: str = "") -> list[str]:
    """The places at which what was made does not have what its template says; it may have more."""
    if isinstance(template, dict):
        if not isinstance(made, dict):
            return [where]
        return [
            difference
            for key, value in template.items()
            for difference in (differences(value, made[key], f"{where}.{key}") if key in made else [f"{where}.{key}"])
        ]
    if isinstance(template, list):
        found = made if isinstance(made, list) else []
        return [f"{where}[{n}]" for n, item in enumerate(template) if all(differences(item, other) for other in found)]
    return [] if template == made else [f"{where}: {template!r} is {made!r}"]
