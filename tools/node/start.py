"""Start a node: fresh certificates and an empty cluster every time, the images of the last time.

One node per directory. Two in different directories do not meet: each has its own network, processes and control
groups. A second start in the same directory is refused while the first one runs.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from compaction.local.cluster.certs import write_private
from compaction.local.cluster.control_plane import (
    AUDIT_POLICY,
    LocalState,
    read_state,
    remove_state,
    write_admin,
    write_state,
)
from compaction.local.errors import NodeError
from compaction.local.processes.process import ProcessId, exclusive, spawn
from tools.node.places import API_ADDRESS, API_PORT, COVERED, GATEWAY, NODE_ADDRESS, NODE_NAME, NodeLayout
from tools.node.prepare import Programs, check_machine, ensure_packages, ensure_programs
from tools.node.running import (
    RunningNode,
    end,
    import_archive,
    kept,
    log_tails,
    remains,
    running_node,
    tools_archive,
)
from tools.node.servers import servers, sysctl_files, write_identities, write_settings

READY_SECONDS = 180.0
POLL_SECONDS = 0.1
TAIL_LINES = 5

Report = Callable[[str], None]


def start_node(
    directory: Path, *, detached: bool = False, report: Report = lambda _: None, programs: Programs | None = None
) -> RunningNode:
    """Make what is missing (the first time minutes, then nothing) and start a node in `directory`; about ten seconds.

    Not `detached`: it ends with the calling process, however that ends.

    Raises:
        NodeError: this machine cannot run one, one runs there already, or it did not become ready. Nothing is left.
        BinaryError: a program could not be built.
    """
    check_machine()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    layout = NodeLayout(directory.resolve())
    covered = [path for path in COVERED if layout.directory.is_relative_to(path)]
    if covered:
        raise NodeError(f"{layout.directory}: a node sees another {covered[0]} than its host; choose another directory")
    ensure_packages(report=report)
    programs = programs or ensure_programs(report=report)
    with exclusive(layout.lock, what=f"starting the node in {layout.directory}", report=report):
        _make_room(layout)
        tools = tools_archive(layout, report=report)
        return _start(layout, programs, tools, detached=detached, report=report)


def stop_node(directory: Path, *, report: Report = lambda _: None) -> LocalState | None:
    """Stop the node recorded in `directory`; None when none is. Its images stay.

    Raises:
        NodeError: something of it is left; names it.
    """
    if not directory.is_dir():
        return None
    layout = NodeLayout(directory.resolve())
    with exclusive(layout.lock, what=f"stopping the node in {layout.directory}", report=report):
        state = read_state(layout.directory)
        if state is not None:
            end(layout, state.processes[0])
        return state


def _make_room(layout: NodeLayout) -> None:
    """Refuse a second node, and remove what a killed one left."""
    state = read_state(layout.directory)
    if state is not None and state.survivors:
        keeper = state.survivors[0]
        raise NodeError(
            f"a node already runs in {layout.directory} (process {keeper.pid}): "
            f"stop it first, or use another directory for a second one"
        )
    left = remains(layout)
    if left:
        raise NodeError(f"an earlier node in {layout.directory} left behind: {'; '.join(left)}")
    remove_state(layout.directory)
    for directory in (layout.fresh, layout.log):
        if directory.exists():
            shutil.rmtree(directory)
    for directory in (
        *(layout.fresh / name for name in ("etcd", "hold", "var-lib/kubelet", "var-log", "volume-plugins")),
        layout.log,
        layout.store,
    ):
        directory.mkdir(parents=True, mode=0o755, exist_ok=True)


def _start(layout: NodeLayout, programs: Programs, tools: Path, *, detached: bool, report: Report) -> RunningNode:
    authority = write_identities(layout)
    write_settings(layout)
    audit_policy = layout.settings / "audit-policy.yaml"
    write_private(audit_policy, AUDIT_POLICY)
    plan = layout.fresh / "plan.json"
    started = servers(layout, programs, authority, audit_policy=audit_policy)
    plan.write_text(json.dumps(_plan(layout, [asdict(server) for server in started])))
    report("starting the node")
    command = [sys.executable, "-m", "tools.node.keeper", str(plan), "0" if detached else str(os.getpid())]
    child = spawn(command, cwd=layout.directory, log=layout.log / "node.log", detached=True)
    keeper = ProcessId.of("node", child.pid)
    if keeper is None:
        raise NodeError(f"the node ended at once:\n{log_tails(layout, ['node'], tail=TAIL_LINES)}")
    try:
        write_state(layout.directory, LocalState(url="", kubeconfig=layout.kubeconfig, processes=(keeper,)))
        node = _await_ready(layout, keeper)
        import_archive(node, tools)
        return node
    except BaseException:
        # Also for Ctrl-C: nothing half-started outlives the command that wanted it.
        end(layout, keeper)
        raise


def _plan(layout: NodeLayout, documents: list[dict[str, object]]) -> dict[str, object]:
    mounts = [["proc", "proc", "/proc"]]
    mounts += [["bind", str(file), f"/proc/sys/{name}"] for name, file in sysctl_files(layout).items()]
    mounts += [["bind", str(layout.fresh / "var-lib"), "/var/lib"], ["bind", str(layout.fresh / "var-log"), "/var/log"]]
    mounts += [["tmpfs", "tmpfs", "/run"], ["bind", "/var/lib/kubelet", "/var/lib/kubelet"]]
    commands = f"""
        mkdir -p /run/containerd
        mount --make-rshared /
        ip link set lo up
        ip link add node0 type veth peer name node1
        ip addr add {NODE_ADDRESS}/24 dev node0
        ip addr add {API_ADDRESS}/32 dev lo
        ip link set node0 up
        ip link set node1 up
        ip route add default via {GATEWAY}
        sysctl -qw net.ipv4.ip_forward=1
    """
    return {
        "cgroup": layout.cgroup,
        "kept": str(layout.kept),
        "api": [NODE_ADDRESS, API_PORT],
        "directory": str(layout.fresh),
        "hold": str(layout.hold),
        "log": str(layout.log),
        "mounts": mounts,
        "commands": [line.split() for line in commands.strip().splitlines()],
        "servers": documents,
    }


def _await_ready(layout: NodeLayout, keeper: ProcessId) -> RunningNode:
    """The node once it is Ready and the default ServiceAccount exists, without which no pod can be made."""
    deadline = time.monotonic() + READY_SECONDS
    node: RunningNode | None = None
    while not (node is not None and _ready(node)):
        if not keeper.alive():
            raise NodeError(f"the node ended while starting:\n{log_tails(layout, ['node'], tail=TAIL_LINES * 3)}")
        if time.monotonic() > deadline:
            names = sorted(path.stem for path in layout.log.glob("*.log") if path.stem != "audit")
            raise NodeError(f"not ready after {READY_SECONDS:.0f} s:\n{log_tails(layout, names, tail=TAIL_LINES)}")
        if node is None and layout.kept.exists():
            first, port = kept(layout)
            node = running_node(layout, f"https://127.0.0.1:{port}", keeper=keeper, first=first)
            write_admin(node.plane.authority, layout.kubeconfig, url=node.plane.url)
            write_state(layout.directory, LocalState(node.plane.url, layout.kubeconfig, (keeper,)))
        time.sleep(POLL_SECONDS)
    return node


def _ready(node: RunningNode) -> bool:
    try:
        answer = node.plane.admin.request("GET", f"/api/v1/nodes/{NODE_NAME}", timeout=5)
        account = node.plane.admin.request("GET", "/api/v1/namespaces/default/serviceaccounts/default", timeout=5)
    except (OSError, ssl.SSLError):
        return False
    if not (answer.ok and account.ok):
        return False
    conditions = answer.json().get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
