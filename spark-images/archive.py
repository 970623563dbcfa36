"""Build step: an archive of the classes that Spark loads, for the JVMs of this image (worker/spark/settings.py).

    archive.py FILE

It is valid for the very Java runtime, jars and class path of the image, so it is made inside, after both are in place.
In it is every class that a start and a Python task load, and what a driver needs to ask Kubernetes for executors.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -XX:ArchiveClassesAtExit={file} -Xlog:cds=off "
    "-Xlog:cds+dynamic=off"
)
POD = """{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"},
"spec": {"containers": [{"name": "c", "env": [{"name": "a", "value": "b"}]}]}, "status": {"phase": "Running"}}"""
CLASSES = (
    "org.apache.spark.scheduler.cluster.k8s.KubernetesClusterManager",
    "org.apache.spark.scheduler.cluster.k8s.KubernetesClusterSchedulerBackend",
    "org.apache.spark.scheduler.cluster.k8s.ExecutorPodsAllocator",
    "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
)


def main(file: Path) -> None:
    """Start, work, stop; the JVM writes the archive as it ends."""
    conf = SparkConf(loadDefaults=False).setMaster("local[2]").setAppName("archive")
    conf.set("spark.ui.enabled", "false").set("spark.driver.memory", "512m")
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    conf.set("spark.driver.extraJavaOptions", OPTIONS.format(file=file))
    context = SparkContext(conf=conf)
    gateway = context._gateway
    assert context.parallelize(range(8), 2).map(lambda number: number * 2).sum() == 56
    ask_kubernetes(gateway.jvm)
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(300)
    except subprocess.TimeoutExpired:
        sys.exit("error: Spark did not end")
    if not file.is_file():
        sys.exit(f"error: the JVM wrote no archive to {file}")
    print(f"{file}: {file.stat().st_size >> 20} MiB")


def ask_kubernetes(jvm: Any) -> None:
    """Nobody answers on this port: the client is loaded, it writes and reads objects, and gives up at once."""
    fabric8 = jvm.io.fabric8.kubernetes.client
    config = fabric8.ConfigBuilder().withMasterUrl("https://127.0.0.1:9").withRequestRetryBackoffLimit(0).build()
    client = fabric8.KubernetesClientBuilder().withConfig(config).build()
    serialization = client.getKubernetesSerialization()
    serialization.asYaml(serialization.unmarshal(POD))
    try:
        client.pods().inNamespace("n").list()
    except Py4JError:
        pass
    else:
        sys.exit("error: somebody answered on port 9")
    client.close()
    for name in CLASSES:
        jvm.java.lang.Class.forName(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
