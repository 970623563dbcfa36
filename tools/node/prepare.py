"""`python -m tools.node.prepare`: packages and programs of a node, before they are needed, with
progress.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from compaction.cli.lazy import describe
from compaction.local.errors import BinaryError, NodeError
from compaction.local.processes.process import cache_directory, exclusive
from compaction.local.programs import gobuild
from compaction.local.programs.binaries import (
    Binaries,
    BuildTarget,
    cache_lock,
    ensure_binaries,
    install_set,
    remove_unfinished,
)
from compaction.local.programs.gobuild import KUBERNETES_VERSION
from tools.node import places

# Packages that a node needs from the distribution: Debian's container runtime and tools, installed when they are
# absent.
#
# Nothing of it runs outside the node: a machine with a service manager would start containerd at once, so there the
# package is asked for instead of installed.

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "dnsmasq": "dnsmasq-base",
    "ip": "iproute2",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
"""Program -> the Debian package that has it."""
ESSENTIAL = ("unshare", "nsenter", "mount", "sysctl")
SERVICE_MANAGER = Path("/run/systemd/system")
ERROR_LINES = 15

Report = Callable[[str], None]


def check_machine() -> None:
    """Raises NodeError when this machine cannot run a node: says what it lacks."""
    if sys.platform != "linux":
        raise NodeError("a node needs Linux: its pods run in namespaces of this machine's kernel")
    if os.geteuid() != 0:
        raise NodeError("a node needs root: it makes namespaces, mounts and control groups; run it with sudo")
    if lacking := places.missing_controllers():
        raise NodeError(
            f"a node needs the control group controllers {', '.join(lacking)} below {places.CGROUP_ROOT}, and neither "
            "version 1 nor version 2 has them there: mount one of the two, and take care that no cgroup_disable= on "
            "the kernel's command line names them"
        )
    missing = [program for program in ESSENTIAL if shutil.which(program) is None]
    if missing:
        raise NodeError(f"a node needs {', '.join(missing)}: install the packages util-linux, mount and procps")


def missing_packages(programs: Mapping[str, str] = PACKAGES) -> list[str]:
    """The packages of programs that are not here."""
    return sorted({package for program, package in programs.items() if shutil.which(program) is None})


def ensure_packages(programs: Mapping[str, str] = PACKAGES, *, report: Report, user: str = "a node") -> None:
    """Install with apt what is missing of the programs (program -> package). `user`: who needs them, for messages.

    Raises:
        NodeError: there is no apt, a service manager would start what is installed, or the installation failed.
    """
    missing = missing_packages(programs)
    if not missing:
        return
    words = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise NodeError(f"{user} needs the programs of Debian's packages {words}, and there is no apt-get here")
    if SERVICE_MANAGER.exists():
        raise NodeError(f"{user} needs packages that are not here: apt-get install --no-install-recommends {words}")
    for what, arguments in (
        ("reading the package lists", ["update"]),
        (f"installing {words}", ["install", "--yes", "--no-install-recommends", *missing]),
    ):
        report(f"apt: {what}")
        started = time.monotonic()
        _apt(arguments, what=what)
        report(f"apt: done in {time.monotonic() - started:.0f} s")
    still = missing_packages(programs)
    if still:
        raise NodeError(f"installed, but the programs of {' '.join(still)} are not on PATH")


def _apt(arguments: list[str], *, what: str) -> None:
    answer = subprocess.run(
        # Another apt at work is waited for: two runs at once install one after the other.
        ["apt-get", "--quiet", "--option", "DPkg::Lock::Timeout=300", *arguments],
        env=dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        tail = "\n".join(answer.stdout.splitlines()[-ERROR_LINES:])
        raise NodeError(f"{what} failed:\n{tail}")


# The programs of a node: those of the local control plane, and the three servers that make pods run.
#
# kube-controller-manager, kube-scheduler and kubelet are in no published archive for tests, so they are always built,
# from the same modules with the same flags as the API server (`gobuild.py`): on a machine that built that one, most
# is compiled already. They are a set of their own in the cache, made once, complete or not at all.

NODE_SERVERS = ("kube-controller-manager", "kube-scheduler", "kubelet")

Build = Callable[[Path, tuple[str, ...], Path, Report], None]


@dataclass(frozen=True, slots=True)
class Programs:
    """Absolute paths of everything Kubernetes that a node runs."""

    control_plane: Binaries
    kube_controller_manager: Path
    kube_scheduler: Path
    kubelet: Path


def ensure_programs(
    *,
    report: Report = lambda _: None,
    environment: Mapping[str, str] | None = None,
    build: Build = gobuild.build,
) -> Programs:
    """All programs, made when they are not here yet (the first time: minutes). Safe to call from two processes at once.

    Raises:
        BinaryError: a program could not be downloaded or built; says why.
    """
    environment = os.environ if environment is None else environment
    control_plane = ensure_binaries(report=report, environment=environment)
    cache = cache_directory(environment)
    place = cache / "control-plane" / f"node-{KUBERNETES_VERSION}-{BuildTarget.here()}"
    if not _complete(place):
        with exclusive(cache_lock(cache), what="preparing the programs of the node", report=report):
            if not _complete(place):
                remove_unfinished(cache)
                install_set(place, lambda fresh: build(fresh, NODE_SERVERS, cache, report))
    if not _complete(place):
        raise BinaryError(f"the programs made in {place} are not executable; remove that directory and try again")
    controller_manager, scheduler, kubelet = (place / name for name in NODE_SERVERS)
    return Programs(control_plane, controller_manager, scheduler, kubelet)


def _complete(place: Path) -> bool:
    return all(shutil.which(name, path=str(place)) for name in NODE_SERVERS)


# `python -m tools.node.prepare`: everything a node needs, before it is needed, with visible progress.


def main() -> int:
    """Exit code 1, and one line that says why, when this machine cannot run a node."""
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[node {int(time.monotonic() - started):4d} s] {line}", flush=True)

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        check_machine()
        ensure_packages(report=report)
        programs = ensure_programs(report=report)
    except (BinaryError, NodeError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    report(f"ready: {programs.kubelet}")
    return 0


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
