"""Control groups of version 2 by the kernel's own rules, in a mount of their own: also where pods use version 1.

There the kernel's version 2 has few controllers (those that no hierarchy of version 1 has taken), but the rules for
handing them down, making and removing groups are the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from pathlib import Path
from tools.node import places

places.CGROUP_ROOT = Path(sys.argv[1])
name = sys.argv[2]
handed = lambda group: sorted((places.CGROUP_ROOT / group / "cgroup.subtree_control").read_text().split())
said = {"unified": places.is_unified(), "before": handed(".")}
said["available"] = sorted((places.CGROUP_ROOT / "cgroup.controllers").read_text().split())
switched_on = places.create_cgroups(name)
said["parent"], said["inside"] = handed(name), handed(".")
(places.CGROUP_ROOT / name / "kubepods" / "pod").mkdir(parents=True)
said["remaining"] = [str(path) for path in places.remaining_cgroups(name)]
said["left"] = [str(path) for path in places.remove_cgroups(name, switched_on=switched_on)]
said["after"] = handed(".")
print(json.dumps(said))
"""


def test_a_parent_has_the_controllers_and_goes_without_a_trace(tmp_path: Path) -> None:
    name = f"compaction-node-{tmp_path.name}"
    inner = f'mount -t cgroup2 none {tmp_path} && exec {sys.executable} -c "$1" {tmp_path} {name}'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inner, "sh", SCRIPT]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    expected = sorted({"cpu", "cpuset", "memory", "pids", "hugetlb", "io"} & set(said["available"]))
    assert said["unified"]
    assert expected != []
    assert said["parent"] == expected
    assert set(expected) <= set(said["inside"])
    assert (said["remaining"], said["left"]) == ([str(tmp_path / name)], [])
    assert said["after"] == said["before"]
