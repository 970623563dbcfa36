"""What counts as a trace of a node: each sort is found, and what others make beside it is none.

Where the kernel can show it without a trace on the machine, the traces are real ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from node.host_state import OTHERS_GO, HostState, of_others, processes_in, traces
from support.clocks import eventually
from tools.node.places import NodeLayout

NAMES = [field.name for field in fields(HostState)]
SAME = HostState(**{name: frozenset({f"{name} of before"}) for name in NAMES})
TESTS = Path(__file__).resolve().parents[1]
IN_NAMESPACES = """
import json, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from node.host_state import look
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
before = look()
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", sys.argv[2]], check=True)
subprocess.run(["ip", "addr", "add", "10.99.7.7/32", "dev", "lo"], check=True)
forward = Path("/proc/sys/net/ipv4/ip_forward")
forward.write_text(str(1 - int(forward.read_text())))
Path("/run/netns").mkdir()
print(json.dumps(before.differences(look())))
"""


def test_what_the_kernel_shows_of_a_node_is_found(tmp_path: Path) -> None:
    """A mount, an address, a setting and a directory, in namespaces of the test's own."""
    alone = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, "-c", IN_NAMESPACES]
    answer = subprocess.run([*alone, str(TESTS), str(tmp_path)], check=True, stdout=subprocess.PIPE, text=True)
    found = {name: " ".join(facts) for name, facts in json.loads(answer.stdout).items()}
    assert f"+ / {tmp_path} " in found["mounts"]
    assert "10.99.7.7/32" in found["network"]
    assert "+ net/ipv4/ip_forward = " in found["sysctls"]
    assert found["places"] == "+ /run/netns"


@pytest.mark.parametrize("name", NAMES)
def test_every_sort_of_trace_is_named(name: str) -> None:
    more = replace(SAME, **{name: frozenset({f"{name} of before", "left behind"})})
    less = replace(SAME, **{name: frozenset()})
    assert traces(SAME, SAME, others=frozenset()) == {}
    assert traces(SAME, more, others=frozenset({"another"})) == {name: ["+ left behind"]}
    assert traces(SAME, less, others=frozenset()) == ({} if name in OTHERS_GO else {name: [f"- {name} of before"]})


def test_cgroups_of_others_are_no_trace_and_the_nodes_own_are(tmp_path: Path) -> None:
    directory, root = tmp_path / "node", tmp_path / "cgroup"
    own, another = NodeLayout(directory).cgroup, NodeLayout(tmp_path / "another").cgroup
    processes = {
        f"{own}/kubepods/pod": "12\n",
        f"cpu/{own}": "",
        "kubepods": "",
        "cpu/session/run": "13\n",
        f"{another}/kubepods": "",
        f"cpu/session/{another}": "",
    }
    for name, inside in processes.items():
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").write_text(inside)
    found = frozenset(str(path) for path in root.rglob("*") if path.is_dir())
    later = traces(replace(SAME, cgroups=frozenset()), replace(SAME, cgroups=found), others=of_others(directory, root))
    left = sorted([own, f"{own}/kubepods", f"{own}/kubepods/pod", f"cpu/{own}", "kubepods"])
    assert later == {"cgroups": [f"+ {root / name}" for name in left]}


def test_processes_of_a_node_are_found_by_their_command_and_their_place(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "node", tmp_path / "elsewhere"
    (directory / "fresh").mkdir(parents=True)
    elsewhere.mkdir()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = [
        subprocess.Popen(sleep, cwd=directory / "fresh"),
        subprocess.Popen([*sleep, f"--config={directory}/kubelet.yaml"]),
        subprocess.Popen([*sleep, str(elsewhere)], cwd=elsewhere),
    ]
    try:
        eventually(lambda: len(processes_in(directory)) == 2, "both to have begun")
        assert {int(line.partition(" ")[0]) for line in processes_in(directory)} == {item.pid for item in started[:2]}
    finally:
        for item in started:
            item.kill()
            item.wait()
    assert processes_in(directory) == []
