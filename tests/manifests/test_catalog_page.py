"""docs/catalogs.md, the part about clusters: every command run as it stands there, on a real API server, a real etcd, a
real operator and two reference participants. Namespace and ports are the test's own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, CatalogReason
from compaction.api.catalog.reasons import Reason
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType
from compaction.local.programs.binaries import Binaries
from support.catalogs.etcd_members import Members, etcd_members
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import PROGRAMS, Cluster
from support.cluster.control_plane import MANIFESTS, ROOT
from support.processes.operators import ACCOUNT, OperatorFleet, fleet_in
from tools.servers.versitygw import free_port

pytestmark = pytest.mark.apiserver

PAGE = ROOT / "docs" / "catalogs.md"
EXAMPLES = ("catalog.yaml", "catalog-by-url.yaml")
COMMANDS = ("Install", "Secrets", "Participants", "Suspend, and try it dry", "On one machine")
"""Headings below which there are commands."""
IN_A_CLUSTER = PAGE.read_text().partition("\n## In a cluster\n")[2].partition("\n## Values of")[0]
TABLE = re.compile(r"^\| ([A-Z, ]+) \|", re.MULTILINE)


@dataclass
class Reader:
    """A reader of the page with a shell in a folder of their own, in which `manifests` is the repository's."""

    cluster: Cluster
    folder: Path
    environment: dict[str, str]
    words: dict[str, str]
    background: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def written(self, line: str) -> str:
        for word, own in self.words.items():
            line = line.replace(word, own)
        return line

    def run(self, line: str) -> str:
        written = self.written(line)
        if written.endswith(" &"):
            command = shlex.split(written.removesuffix(" &"))
            log = (self.folder / f"{len(self.background)}.log").open("wb")
            with log:
                self.background.append(
                    subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
                )
            return ""
        done = subprocess.run(
            ["bash", "-c", written], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{written}\n{done.stdout}{done.stderr}"
        return done.stdout

    def until(self, holds: Callable[[CatalogCompactionStatus], bool], what: str) -> None:
        """Until the catalog's status is so; asked of the API server, where a shell and a kubectl for each look would
        cost more than what is waited for.
        """
        eventually(
            lambda: holds(CatalogCompaction.from_object(self.cluster.catalog()).status), f"{what} of ccat/orders"
        )

    def until_ready_is(self, reason: str) -> None:
        """Until the condition Ready has this reason."""

        def holds(status: CatalogCompactionStatus) -> bool:
            ready = get_condition(status.conditions, ConditionType.READY)
            return ready is not None and ready.reason == reason

        self.until(holds, f"Ready, {reason},")

    def close(self) -> None:
        for process in self.background:
            process.send_signal(signal.SIGTERM)
        for process in self.background:
            assert process.wait(PATIENCE_SECONDS) is not None


def section(title: str) -> list[str]:
    """The commands below a heading of the part."""
    text = IN_A_CLUSTER.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    assert text, title
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line for language, block in blocks if not language for line in block.splitlines()]


@pytest.fixture
def etcd(tmp_path: Path, binaries: Binaries) -> Iterator[Members]:
    with etcd_members(tmp_path / "etcd", binaries.etcd) as running:
        yield running


@pytest.fixture
def fleet(control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[OperatorFleet]:
    with fleet_in(control_plane, namespace, tmp_path / "operator", light=()) as fleet:
        yield fleet


@pytest.fixture
def reader(control_plane: Any, namespace: str, etcd: Members, tmp_path: Path) -> Iterator[Reader]:
    """The kubeconfig has the namespace; the folder has files with the contents of the Secrets."""
    words = {"-n storage": f"-n {namespace}", "namespace: storage": f"namespace: {namespace}"}
    words |= {"8092": str(free_port()), "8093": str(free_port()), ":2379": f":{etcd.members[0].client_port}"}
    folder = tmp_path / "folder"
    shutil.copytree(MANIFESTS, folder / "manifests")
    for name in ("password", "token"):
        (folder / name).write_text(f"{name} of the test")
    shutil.copy2(control_plane.running.authority.ca, folder / "ca.crt")
    group = ("system:masters",)
    kubeconfig = control_plane.running.kubeconfig_for("reader", tmp_path / "kube", groups=group, namespace=namespace)
    path = f"{PROGRAMS}:{control_plane.binaries.kubectl.parent}:{os.environ['PATH']}"
    found = Reader(
        Cluster(control_plane, namespace), folder, os.environ | {"KUBECONFIG": str(kubeconfig), "PATH": path}, words
    )
    for file in (*EXAMPLES, "catalogs/kustomization.yaml"):
        written = folder / "manifests" / "examples" / file
        written.write_text(found.written(written.read_text()))
    yield found
    found.close()


def test_every_part_has_its_commands() -> None:
    assert [len(section(title)) for title in COMMANDS] == [1, 3, 4, 6, 8]
    programs = {line.split()[0] for title in COMMANDS for line in section(title)}
    assert programs == {"kubectl", "compactor", "printf", "head"}


def test_the_commands_install_and_show_a_catalog(
    reader: Reader, fleet: OperatorFleet, control_plane: Any, namespace: str
) -> None:
    """The example names an etcd that is not there: the object says so, and what the reader does is accepted."""
    for title in COMMANDS[:3]:
        shown = [reader.run(line) for line in section(title)]
    assert "never: no operator has observed the catalog yet" in shown[-2]
    assert "The first round follows when an operator watches the namespace." in shown[-1]
    granted = reader.run(
        f"kubectl get role compaction-catalogs -n {namespace} -o jsonpath='{{.rules[0].resourceNames}}'"
    )
    assert json.loads(granted) == ["orders-etcd", "orders-participants"]
    control_plane.kubectl(
        "create", "rolebinding", "secrets", "--role=compaction-catalogs", f"--user={ACCOUNT}", namespace=namespace
    )
    # The example waits half a minute for each call of an etcd, and a round has two.
    reader.run("""kubectl patch ccat orders --type=merge -p '{"spec":{"timeouts":{"log":"1s"}}}'""")
    fleet.start()
    reader.until_ready_is(Reason.LOG_UNAVAILABLE)
    why = reader.run("kubectl compaction why ccat/orders")
    assert "etcd-0.etcd" in why
    assert "NoParticipants" in why, "both processes end apart"
    for line in section("Suspend, and try it dry"):
        reader.run(line)
    reader.run("""kubectl patch ccat orders --type=merge -p '{"spec":{"suspend":true}}'""")
    reader.until_ready_is(CatalogReason.SUSPENDED)


def test_two_participants_on_one_machine_let_a_history_be_cut(
    reader: Reader, fleet: OperatorFleet, control_plane: Any, namespace: str
) -> None:
    control_plane.kubectl("create", "role", "secrets", "--verb=get", "--resource=secrets", namespace=namespace)
    control_plane.kubectl(
        "create", "rolebinding", "secrets", "--role=secrets", f"--user={ACCOUNT}", namespace=namespace
    )
    fleet.start()
    for line in section("On one machine"):
        reader.run(line)
    reader.until(lambda status: status.versions_cut >= 4, "versionsCut")
    columns = kubectl_columns(reader.run("kubectl get ccat -o wide"))
    described = [word for row in TABLE.findall(IN_A_CLUSTER) for word in row.split(", ")]
    assert columns[0] == "NAME"
    assert sorted(described) == sorted(columns[1:]), "every column is described, and no other"
    (row,) = [line.split() for line in reader.run("kubectl get ccat orders").splitlines()[1:]]
    assert row[1] == "True"
    assert int(row[4]) - int(row[3]) == 1
    assert "2/2" in reader.run("kubectl compaction status ccat/orders")
    why = reader.run("kubectl compaction why ccat/orders")
    for name in ("node1", "node2"):
        assert f"Participant {name} needs the catalog from " in why
    assert "Compacted" in reader.run("kubectl get events -o jsonpath='{.items[*].reason}'")


def kubectl_columns(table: str) -> list[str]:
    return table.splitlines()[0].split()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_catalogs(name: str) -> None:
    document = yaml.safe_load((MANIFESTS / "examples" / name).read_text())
    assert CatalogCompaction.from_object(document).metadata.name == "orders"


def test_the_conditions_of_the_page_are_those_that_there_are() -> None:
    """Each standing has a row, and each reason of its own is named."""
    rows = re.findall(r"^\| (`Ready=.*?) \|", IN_A_CLUSTER, re.MULTILINE)
    assert rows == ["`Ready=True`", "`Ready=Unknown`, `Reconciling=True`", "`Ready=False`, `Stalled=True`"]
    for reason in CatalogReason:
        assert f"`{reason}`" in IN_A_CLUSTER
