"""A node comes up, runs pods, and goes away without a trace: asked to, interrupted, or killed; and two do not mix."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.local.cluster.control_plane import read_state
from compaction.local.errors import NodeError
from node.host_state import HostState, assert_no_trace, look, processes_in
from node.on_node import kubectl
from support.clocks import PATIENCE_SECONDS, TIMEOUT_FLAG, eventually
from support.timing import at_depth
from tools.node import places
from tools.node.places import NodeLayout
from tools.node.running import TOOLS_IMAGE, RunningNode, adopt
from tools.node.start import start_node, stop_node

POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: NAME}}
spec:
  restartPolicy: Never
  automountServiceAccountToken: true
  containers:
  - name: main
    image: {TOOLS_IMAGE}
    imagePullPolicy: Never
    command: [sh, -c]
    args: ["COMMAND"]
    resources: {{limits: {{memory: 32Mi, cpu: 100m}}}}
"""


def pod(name: str, command: str) -> str:
    return POD.replace("NAME", name).replace("COMMAND", command)


@pytest.fixture
def separate(tmp_path: Path, host_before: HostState) -> Iterator[Path]:
    """A directory for a node of the test's own."""
    directory = tmp_path / "node"
    yield directory
    assert_no_trace_of(directory)


def assert_no_trace_of(directory: Path) -> None:
    eventually(lambda: not places.remaining_cgroups(NodeLayout(directory).cgroup), "the control groups to be removed")
    assert processes_in(directory) == []


def starter(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.node", "up", "--state-dir", str(directory)]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_pods_run_log_and_end(node: RunningNode) -> None:
    kubectl(node, "apply", "-f", "-", input=pod("hello", "echo from $HOSTNAME; id -u; exit 3"))
    kubectl(node, "wait", "--for=jsonpath={.status.phase}=Failed", "pod/hello", TIMEOUT_FLAG)
    assert kubectl(node, "logs", "hello").splitlines()[0] == "from hello"
    code = "{.status.containerStatuses[0].state.terminated.exitCode}"
    assert kubectl(node, "get", "pod", "hello", "-o", f"jsonpath={code}") == "3"
    kubectl(node, "apply", "-f", "-", input=pod("waiting", "sleep 1000"))
    kubectl(node, "wait", "--for=condition=Ready", "pod/waiting", TIMEOUT_FLAG)
    assert kubectl(node, "exec", "waiting", "--", "cat", "/proc/1/cmdline").startswith("sleep")
    address = kubectl(node, "get", "pod", "waiting", "-o", "jsonpath={.status.podIP}")
    assert address.startswith("10.244.0.")
    found = kubectl(node, "exec", "waiting", "--", "nslookup", "kubernetes.default.svc.cluster.local")
    assert "10.96.0.1" in found
    kubectl(node, "delete", "pod", "hello", "waiting", "--grace-period=0", "--force")


def test_a_server_can_be_held_and_comes_back(node: RunningNode) -> None:
    node.hold("kube-scheduler")
    eventually(lambda: "kube-scheduler ended" in (node.layout.log / "node.log").read_text(), "the scheduler to end")
    kubectl(node, "apply", "-f", "-", input=pod("patient", "exit 0"))
    time.sleep(2)
    assert kubectl(node, "get", "pod", "patient", "-o", "jsonpath={.spec.nodeName}") == ""
    node.release("kube-scheduler")
    kubectl(node, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/patient", TIMEOUT_FLAG)
    kubectl(node, "delete", "pod", "patient")


def test_a_second_node_in_the_same_directory_is_refused(node: RunningNode, node_directory: Path) -> None:
    with pytest.raises(NodeError, match=rf"already runs in {node_directory} \(process {node.keeper.pid}\)"):
        start_node(node_directory)
    assert node.keeper.alive()
    assert kubectl(node, "get", "node", "node1", "--no-headers").split()[1] == "Ready"


def test_a_node_in_another_directory_does_not_meet_the_first(node: RunningNode, separate: Path) -> None:
    with start_node(separate) as other:
        kubectl(other, "apply", "-f", "-", input=pod("elsewhere", "sleep 1000"))
        kubectl(other, "wait", "--for=condition=Ready", "pod/elsewhere", TIMEOUT_FLAG)
        assert kubectl(node, "get", "pod", "elsewhere", "--ignore-not-found") == ""
    assert kubectl(node, "get", "node", "node1", "--no-headers").split()[1] == "Ready"


ENDS = at_depth(short=[signal.SIGKILL], deep=[signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
"""What ends the command. One that is interrupted while its node starts is a test of its own."""


@pytest.mark.parametrize("number", ENDS)
def test_the_command_takes_its_node_along(separate: Path, number: signal.Signals) -> None:
    """Also when it is killed without a word: the keeper hears of it from the kernel."""
    command = starter(separate)
    assert command.stdout is not None
    assert command.stdout.readline().startswith("export KUBECONFIG=")
    assert processes_in(separate) != []
    command.send_signal(number)
    command.communicate(timeout=PATIENCE_SECONDS)
    eventually(lambda: not processes_in(separate), "every process of the node to be gone")


def test_interrupted_while_starting_nothing_is_left(separate: Path) -> None:
    command = starter(separate)
    eventually(lambda: (separate / "fresh" / "plan.json").exists() or command.poll() is not None, "the node to start")
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode != 0


def test_a_killed_keeper_takes_everything_along(separate: Path) -> None:
    layout = NodeLayout(separate)
    node = start_node(separate, detached=True)
    kubectl(node, "apply", "-f", "-", input=pod("doomed", "sleep 1000"))
    kubectl(node, "wait", "--for=condition=Ready", "pod/doomed", TIMEOUT_FLAG)
    node.keeper.send(signal.SIGKILL)
    eventually(lambda: not processes_in(separate), "the kernel to end the node")
    # Nobody was left to remove them; the next start, or the stop, does.
    assert places.remaining_cgroups(layout.cgroup)
    node.stop()


def test_stopping_a_node_that_another_one_has_replaced_spares_the_other(separate: Path) -> None:
    first = start_node(separate)
    stop_node(separate)
    with start_node(separate) as second:
        first.stop()
        assert kubectl(second, "get", "node", "node1", "--no-headers").split()[1] == "Ready"


def test_a_detached_node_outlives_its_command_and_is_found_again(separate: Path) -> None:
    command = starter(separate, "--detach")
    output, errors = command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode == 0, errors
    assert output == f"export KUBECONFIG={separate / 'kubeconfig'}\n"
    state = read_state(separate)
    assert state is not None
    found = adopt(NodeLayout(separate), state)
    assert "node1" in kubectl(found, "get", "node", "-o", "name")
    down = [sys.executable, "-m", "tools.node", "down", "--state-dir", str(separate)]
    answer = subprocess.run(down, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, f"stopped the node at {state.url}\n"), answer.stderr


def test_a_node_goes_away_without_a_trace(separate: Path, report: Callable[[str], None]) -> None:
    """In a directory of its own, while the session's node runs: the difference is that of one whole life."""
    before = look()
    with start_node(separate, report=report) as running:
        during = look()
        kubectl(running, "apply", "-f", "-", input=pod("brief", "sleep 1000"))
        kubectl(running, "wait", "--for=condition=Ready", "pod/brief", TIMEOUT_FLAG)
        # Only control groups can be seen from outside.
        assert set(before.differences(during)) == {"cgroups"}
    assert_no_trace(before, separate)
