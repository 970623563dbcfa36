"""The images at work on a read-only root: versions, start and end, a rewrite, a driver with an executor."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from compaction.api.job.job_status import ReportOutcome, parse_report
from compaction.api.names import (
    ANNOTATION_REPORT,
    ANNOTATION_VERSION,
    API_VERSION,
    COMPONENT_JOB,
    LABEL_WORKER,
    child_labels,
)
from compaction.leases.record import Lease, LeaseRecord
from compaction.segments.commit import fence
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.worker.loop import WorkerExit
from images.containers import Container, Pod, Unpacked
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.control_plane import ControlPlane
from support.processes.worker_ports import job_spec
from support.segments.segment_logs import content
from tools.images.build import CHECKOUT, RELEASE, BuiltImage, Image, package_sources, pip_settings, sources

NAME = "policy-w-abcde"
WORKER_PLACES = ("/tmp", "/opt/spark/work-dir")
USER, GROUP = 185, 0

Cluster = Callable[..., str]
InCluster = Callable[[str], Pod]


@pytest.mark.parametrize("image", ["operator", "worker"])
def test_the_version_is_said_on_a_read_only_root(image: str, request: pytest.FixtureRequest) -> None:
    unpacked: Unpacked = request.getfixturevalue(image)
    words = ["--version"] if image == "operator" else ["compactor", "--version"]
    answer = unpacked.run(*words)
    assert answer.stdout.split()[-1] == version("compaction-operator"), answer.stderr


@pytest.mark.parametrize("image", ["operator", "worker"])
@pytest.mark.parametrize("command", ["drill", "local"])
def test_a_command_for_workstations_says_where_it_is_available(
    image: str, command: str, request: pytest.FixtureRequest
) -> None:
    unpacked: Unpacked = request.getfixturevalue(image)
    words = [command] if image == "operator" else ["compactor", command]
    answer = unpacked.run(*words)
    assert answer.returncode == 1
    assert answer.stderr == (
        f"error: `compactor {command}` is not available in this image: it runs on workstations only; install the "
        "package there (docs/images.md)\n"
    )


def test_the_root_cannot_be_written_and_the_user_is_the_images(worker: Unpacked) -> None:
    answer = worker.run("sh", "-c", "id -u; id -g; touch /opt/x || echo refused; touch /tmp/x && echo fine")
    assert answer.stdout.split() == [str(USER), str(GROUP), "refused", "fine"]


BLOCKS = """
import io
import pyarrow as pa, pyarrow.parquet as pq
from compaction.blocks.store import BlockStore, BlockStoreConnection
import psycopg
store = BlockStore.open(BlockStoreConnection("file:///tmp/blocks", "sqlite:////tmp/index.db"))
times = pa.array([1, 2, 3], pa.timestamp("us", "UTC"))
out = io.BytesIO()
pq.write_table(pa.table({"time": times, "word": ["a", "b", "c"]}), out, compression="zstd")
store.objects.put("t/0/01ARZ3NDEKTSV4RRFFQ69G5FAV.parquet", out.getvalue())
store.register(["t/0/01ARZ3NDEKTSV4RRFFQ69G5FAV.parquet"], tenant="t", shard=0, time_column="time", verify=True)
print(sum(block.rows for block in store.live().blocks), len(store.queue().entries))
"""


@pytest.mark.parametrize("image", ["operator", "worker"])
def test_both_read_and_write_blocks_and_their_index(image: str, request: pytest.FixtureRequest) -> None:
    """What trimming takes away is not missed; the index is made by migrations that are part of the package."""
    unpacked: Unpacked = request.getfixturevalue(image)
    words = unpacked.command("python", "-c", BLOCKS)
    if image == "operator":
        words.remove("compactor")  # its entry point
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("3 1\n", "")


def test_an_unknown_word_is_a_command(worker: Unpacked) -> None:
    assert worker.run("echo", "a b").stdout == "a b\n"


def test_the_init_passes_signals_on_and_reaps(worker: Unpacked, tmp_path: Path) -> None:
    """Process 1 without handlers of its own would ignore SIGTERM, and a pod would take its whole grace to end."""
    with worker.running(
        "sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done", log=tmp_path / "log"
    ) as one:
        eventually(lambda: "up" in one.output, "the shell")
        one.terminate()
        assert one.wait(PATIENCE_SECONDS) == 7


# --- a worker with the machine's control plane ---


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A small log that the worker's user may write."""
    directory = tmp_path / "data" / "log"
    directory.parent.mkdir()
    generate_log(
        directory, pattern=Pattern.RANDOM, segments=10, entries_per_segment=64, payload_bytes=128, live_fraction=0.3,
        sync=False,
    )  # fmt: skip
    return directory


def given_to_the_worker(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, USER, GROUP, follow_symlinks=False)


def assign(cluster: Cluster, namespace: str, log: Path, *, place: str, token: int) -> None:
    """What a coordinator does for one job of the worker."""
    spec = job_spec(log, limits=SegmentLimits(max_entries=64), path=place).to_object()
    body = {"apiVersion": API_VERSION, "kind": "CompactionJob", "metadata": {"name": "job-1"}, "spec": spec}
    cluster("create", "-f", "-", body=body)
    fence.claim(log, job="job-1", token=token, holder="coordinator")
    given_to_the_worker(log)
    now = datetime.now(UTC)
    labels = child_labels(policy="policy", component=COMPONENT_JOB) | {LABEL_WORKER: NAME}
    record = LeaseRecord(NAME, 60, token, acquire_time=now, renew_time=now)
    cluster("create", "-f", "-", body=Lease(name="job-1", namespace=namespace, record=record, labels=labels).body())


def lease(cluster: Cluster, name: str) -> dict[str, Any]:
    text = cluster("get", "lease", name, "-o", "json", check=False)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


@contextmanager
def working(image: Unpacked, pod: Pod, *words: str, tmp_path: Path, cluster: Cluster) -> Iterator[Container]:
    """A worker that has announced itself."""
    with image.running(*words, log=tmp_path / "worker.log", pod=pod) as container:
        eventually(
            lambda: lease(cluster, NAME) or container.process.poll() is not None, f"the Lease of {NAME}", timeout=600
        )
        assert lease(cluster, NAME), container.output
        yield container


def arguments(namespace: str) -> list[str]:
    return [
        "--namespace", namespace, "--policy", "policy", "--name", NAME, "--slots", "1", "--idle-seconds", "600",
        "--lease-seconds", "60",
    ]  # fmt: skip


def test_a_worker_rewrites_a_log_with_its_own_account_and_ends_when_told(
    worker: Unpacked, cluster: Cluster, in_cluster: InCluster, namespace: str, log: Path, tmp_path: Path
) -> None:
    before = content(log)
    segments = len([*log.glob("*.segment")])
    pod = in_cluster("compaction-worker")
    pod = replace(pod, volumes={**pod.volumes, log.parent: "/mnt"}, writable=WORKER_PLACES)
    words = ["compactor", "worker", *arguments(namespace), "--master", "local[2]"]
    with working(worker, pod, *words, tmp_path=tmp_path, cluster=cluster) as container:
        annotations = lease(cluster, NAME)["metadata"]["annotations"]
        assert annotations[ANNOTATION_VERSION] == version("compaction-operator")
        assign(cluster, namespace, log, place="/mnt/log", token=3)

        def reported() -> str:
            return str(lease(cluster, "job-1")["metadata"].get("annotations", {}).get(ANNOTATION_REPORT, ""))

        report = parse_report(eventually(reported, "the report"))
        container.terminate()
        assert container.wait(PATIENCE_SECONDS) == WorkerExit.TERMINATED, container.output
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert report.token == 3
    assert content(log) == before
    assert len([*log.glob("*.segment")]) <= segments
    assert lease(cluster, NAME) == {}, "it took its Lease back"
    assert re.search(r" (WARN|ERROR) spark |Traceback", container.output) is None, container.output


def test_a_sparkapplications_driver_runs_the_worker_in_front_of_the_jvm(
    worker: Unpacked, cluster: Cluster, in_cluster: InCluster, namespace: str, tmp_path: Path
) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark.properties").write_text(
        "# by Spark\nspark.master=k8s\\://https\\://never.example\nspark.driver.memory=600m\nspark.submit.pyFiles=\n"
    )
    pod = in_cluster("compaction-worker")
    pod = replace(
        pod,
        volumes={**pod.volumes, conf: "/mnt"},
        environment={**pod.environment, "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"},
        writable=WORKER_PLACES,
    )
    words = [
        "driver", "--properties-file", "/mnt/spark.properties", "--class", "org.apache.spark.deploy.PythonRunner",
        "local:///opt/compaction/worker.py", *arguments(namespace), "--master", "local[1]",
    ]  # fmt: skip
    with working(worker, pod, *words, tmp_path=tmp_path, cluster=cluster) as container:
        container.terminate()
        assert container.wait(PATIENCE_SECONDS) == WorkerExit.TERMINATED, container.output
    assert "spark is up" in container.output


def test_a_driver_with_another_main_file_goes_through_spark_submit(worker: Unpacked, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "job.py").write_text(
        "from pyspark import SparkContext\n"
        "with SparkContext(conf=None) as context:\n"
        "    print('sum', context.parallelize(range(5), 2).map(lambda one: one * 2).sum())\n"
    )
    pod = Pod(
        environment={"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1", "SPARK_LOCAL_IP": "127.0.0.1"},
        volumes={directory: "/mnt"},
        writable=WORKER_PLACES,
    )
    answer = worker.run("driver", "--master", "local[2]", "--conf", "spark.ui.enabled=false", "/mnt/job.py", pod=pod)
    assert answer.stdout == "sum 20\n", answer.stderr[-3000:]
    assert answer.returncode == 0


def test_a_driver_gets_its_executor_from_kubernetes(
    worker: Unpacked,
    cluster: Cluster,
    in_cluster: InCluster,
    namespace: str,
    control_plane: ControlPlane,
    tmp_path: Path,
) -> None:
    """The test plays the kubelet for the executor: it starts what the driver's pod asks for, with its environment."""
    pod = replace(in_cluster("compaction-worker"), writable=WORKER_PLACES)
    settings = {
        "spark.kubernetes.container.image": "compaction-worker",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
    }
    conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    words = ["compactor", "worker", *arguments(namespace), "--master", f"k8s://{control_plane.url}", *conf]
    with worker.running(*words, log=tmp_path / "worker.log", pod=pod) as driver:

        def pods() -> list[dict[str, Any]]:
            assert driver.process.poll() is None, driver.output
            found: list[dict[str, Any]] = json.loads(cluster("get", "pods", "-o", "json"))["items"]
            return found

        (asked,) = eventually(pods, "the executor's pod")
        (container,) = asked["spec"]["containers"]
        told = {item["name"]: item.get("value", "") for item in container["env"]}
        told |= {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_EXECUTOR_POD_NAME": asked["metadata"]["name"]}
        told |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": "/tmp", "SPARK_JAVA_OPT_99": "-Xlog:class+load"}
        number = max(
            int(name.rpartition("_")[2]) for name in told if name.startswith("SPARK_JAVA_OPT_") and name[-2:] != "99"
        )
        told[f"SPARK_JAVA_OPT_{number + 1}"] = told.pop("SPARK_JAVA_OPT_99")
        executor_pod = Pod(environment=told, writable=WORKER_PLACES)
        with worker.running(*container["args"], log=tmp_path / "executor.log", pod=executor_pod) as executor:
            # It announces itself only after a Python task has run, and that can only have been on the executor.
            eventually(lambda: lease(cluster, NAME), f"the Lease of {NAME}")
            driver.terminate()
            assert driver.wait(PATIENCE_SECONDS) == WorkerExit.TERMINATED, driver.output
            assert executor.wait(PATIENCE_SECONDS) == 0, executor.output[-3000:]
    assert executor.output.count("shared objects file (top)") > 1000, "the archive of classes is used by executors too"


# --- the operator ---


def test_the_operator_starts_with_a_service_account_and_ends_when_told(
    operator: Unpacked, cluster: Cluster, in_cluster: InCluster, namespace: str, tmp_path: Path
) -> None:
    pod = in_cluster("compaction-operator")
    words = ["operator", "--namespace", namespace, "--metrics-port", "0", "--health-port", "0"]
    with operator.running(*words, log=tmp_path / "operator.log", pod=pod) as container:

        def elected() -> bool:
            assert container.process.poll() is None, container.output
            return bool(lease(cluster, "compaction-coordinator").get("spec", {}).get("holderIdentity"))

        eventually(elected, "the election")
        container.terminate()
        assert container.wait(PATIENCE_SECONDS) == 0, container.output
    assert "Traceback" not in container.output
    assert not lease(cluster, "compaction-coordinator")["spec"].get("holderIdentity"), "it gave the Lease back"


# What is in the images, and what is not.

BOUNDS = {Image.OPERATOR: 400 << 20, Image.WORKER: 700 << 20}
"""Bytes of the archives, uncompressed; docs/images.md has what they are. Growth should be meant."""
TOOLS = ("gcc", "cc", "c++", "ld", "as", "make", "pip", "pip3", "uv", "javac", "jlink", "git", "curl", "wget")


@pytest.fixture(params=list(Image))
def image(request: pytest.FixtureRequest) -> Image:
    found: Image = request.param
    return found


@pytest.fixture
def unpacked(image: Image, request: pytest.FixtureRequest) -> Unpacked:
    found: Unpacked = request.getfixturevalue(image.value)
    return found


def test_the_archive_is_named_and_not_larger_than_meant(image: Image, built: dict[Image, BuiltImage]) -> None:
    assert built[image].bytes == built[image].archive.stat().st_size < BOUNDS[image]
    assert built[image].archive.name.startswith(image.tag.replace(":", "-"))


def test_it_runs_as_nobody_special_under_an_init_and_says_what_it_is(image: Image, unpacked: Unpacked) -> None:
    user = {Image.OPERATOR: "65532:65532", Image.WORKER: "185:0"}[image]
    assert unpacked.config["User"] == user
    assert f":{user}:" in (unpacked.root / "etc/passwd").read_text(), "the user has a name"
    assert unpacked.config["Entrypoint"][:3] == ["/usr/bin/tini", "-s", "--"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in unpacked.labels.items()}
    assert labels["title"] == image.tag.partition(":")[0]
    assert labels["version"] == image.tag.partition(":")[2]
    assert labels["revision"]
    assert labels["description"]


def test_nothing_is_left_to_build_with_or_to_gain_privileges_by(unpacked: Unpacked) -> None:
    programs = {path.name for path in unpacked.files if os.access(path, os.X_OK)}
    assert programs & set(TOOLS) == set()
    privileged = [str(path) for path in unpacked.files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert privileged == []


def test_no_cache_no_list_and_nothing_of_the_machine_it_was_built_on(unpacked: Unpacked) -> None:
    root = unpacked.root
    for empty in ("root/.cache", "var/lib/apt/lists", "var/cache/apt", "run/secrets", "tmp", "src", "wheels"):
        assert [*(root / empty).glob("*")] == []
    hosts = {line.split()[1] for line in package_sources(RELEASE).splitlines()} | {
        line.partition("=")[2].strip() for line in pip_settings().splitlines() if "://" in line
    }
    places = [path for path in (root / "etc").rglob("*") if path.is_file() and not path.is_symlink()]
    told = [str(path) for path in places if any(host in path.read_text(errors="replace") for host in hosts)]
    assert told == []


def test_python_is_compiled(unpacked: Unpacked) -> None:
    """With a read-only root it would be compiled at every start."""
    site = Path("lib/python3.11/site-packages")
    sources = [
        path for place in ("opt/venv", "opt/compaction") for path in (unpacked.root / place / site).rglob("*.py")
    ]
    assert len(sources) > 1000
    bare = [path for path in sources if not [*(path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")]]
    # What is no Python of this version (templates of generators) cannot be compiled.
    assert [str(path) for path in bare if "_vendor" not in path.parts] == []


def test_of_the_package_it_holds_what_reaches_its_build(image: Image, unpacked: Unpacked) -> None:
    """Nothing for workstations (tests/tools/images/test_contents.py), and everything else."""
    place = unpacked.root / "opt/compaction/lib/python3.11/site-packages/compaction"
    found = {path.relative_to(place) for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    package = CHECKOUT / "operator/compaction"
    assert found == {path.relative_to(package) for path in sources(image) if package in path.parents}
    assert {path.parts[0] for path in found} >= {"blocks", "catalogs", "cli", "kube", "segments", "staging", "worker"}
    assert not {path.parts[:2] for path in found} & {("local", name) for name in ("cluster", "programs")}


def test_the_worker_has_the_jars_that_are_named_and_no_more(worker: Unpacked) -> None:
    jars = {path.name for path in (worker.root / "opt/spark/jars/lib").iterdir()}
    assert 100 < len(jars) < 160
    assert not {name for name in jars if name.startswith(("spark-sql_", "spark-mllib", "hive-", "rocksdb"))}
