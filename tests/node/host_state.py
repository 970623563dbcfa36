"""What a machine looks like from outside a node: everything that a node could leave behind or change."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, fields, replace
from pathlib import Path

from support.clocks import eventually
from tools.node import places
from tools.node.places import CGROUPS, NodeLayout

VOLATILE = (
    "fs/aio-nr",
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-nr",
    "fs/inode-state",
    "fs/quota",
    "kernel/ns_last_pid",
    "kernel/pty/nr",
    "kernel/random",
    "net/netfilter/nf_conntrack_count",
)
"""Counters among the kernel's settings; they change by themselves."""
BUILDING = "/images/store/"
OTHERS_GO = ("mounts", "cgroups")
"""What other programs of the machine take away meanwhile; a node sees none of it to take."""
PLACES = (
    "/etc/cni",
    "/opt/cni",
    "/run/containerd",
    "/run/netns",
    "/run/runc",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)
"""Where the programs of a node write unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class HostState:
    """One look. Each field is a set of facts, so that a difference names exactly what came and went."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    sysctls: frozenset[str]
    network: frozenset[str]
    modules: frozenset[str]
    places: frozenset[str]

    def differences(self, later: HostState) -> dict[str, list[str]]:
        """Field -> what is new (`+`) and what is gone (`-`) in `later`."""
        found = {}
        for field in fields(self):
            before, after = getattr(self, field.name), getattr(later, field.name)
            if before != after:
                gone = () if field.name in OTHERS_GO else sorted(before - after)
                facts = [f"+ {fact}" for fact in sorted(after - before)] + [f"- {fact}" for fact in gone]
                if facts:
                    found[field.name] = facts
        return found


def look() -> HostState:
    return HostState(
        mounts=frozenset(_mounts()),
        cgroups=_cgroups(),
        sysctls=frozenset(_sysctls()),
        network=frozenset(_network()),
        modules=frozenset(os.listdir("/sys/module")),
        places=frozenset(place for place in PLACES if Path(place).exists()),
    )


def processes_in(directory: Path) -> list[str]:
    """Command lines of processes that name a directory, or work below it."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = os.readlink(process / "cwd")
        except OSError:
            continue
        if str(directory) in command or Path(place).is_relative_to(directory):
            found.append(f"{process.name} {command}")
    return found


def _cgroups(root: Path = places.CGROUP_ROOT) -> frozenset[str]:
    return frozenset(directory for directory, _, _ in os.walk(root))


def of_others(directory: Path, root: Path = places.CGROUP_ROOT) -> frozenset[str]:
    """Cgroups of nodes in other directories, whose tests look for what those leave; and those of no node in which
    processes live, with those above them: other programs of the machine start things.
    """
    own = NodeLayout(directory.resolve()).cgroup
    found = set()
    for cgroup in _cgroups(root):
        nodes = [part for part in Path(cgroup).relative_to(root).parts if part.startswith(CGROUPS)]
        if nodes and own not in nodes:
            found.add(cgroup)
        elif not nodes and _lives(cgroup):
            found |= {cgroup, *map(str, Path(cgroup).parents)}
    return frozenset(found)


def _lives(cgroup: str) -> bool:
    try:
        return bool(Path(cgroup, "cgroup.procs").read_bytes())
    except OSError:
        return False  # gone, or for threads only


def traces(before: HostState, later: HostState, *, others: frozenset[str]) -> dict[str, list[str]]:
    """Field -> differences that a node has made. `others`: cgroups that are none of its own."""
    return before.differences(replace(later, cgroups=later.cgroups - others))


def assert_no_trace(before: HostState, directory: Path) -> None:
    """The machine is as it was; the moment in which others mount or start something is waited for."""
    differences: dict[str, list[str]] = {}

    def same() -> bool:
        nonlocal differences
        differences = traces(before, look(), others=of_others(directory))
        return not differences

    try:
        eventually(same, "the machine to be as before")
    except AssertionError as error:
        raise AssertionError(f"the node left traces: {differences}") from error
    assert processes_in(directory) == []


def _mounts() -> list[str]:
    lines = (line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    # Images may be built at the same time, for others: the builder's mounts come and go.
    return [" ".join([*left.split()[3:6], right]) for left, _, right in lines if BUILDING not in left]


def _sysctls() -> list[str]:
    root = Path("/proc/sys")
    found = []
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory) / name
            setting = str(path.relative_to(root))
            if not setting.startswith(VOLATILE):
                try:
                    found.append(f"{setting} = {path.read_text().strip()}")
                except (OSError, UnicodeDecodeError):
                    found.append(setting)
    return found


def _network() -> list[str]:
    lines: list[str] = []
    for what in (("-o", "link"), ("-o", "addr"), ("-4", "route"), ("-6", "route")):
        answer = subprocess.run(["ip", *what], capture_output=True, text=True, check=True)
        lines += answer.stdout.splitlines()
    return lines
