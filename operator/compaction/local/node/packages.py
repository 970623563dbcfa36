"""What a node needs from the distribution: Debian's container runtime and tools, installed when they are absent.

Nothing of it runs outside the node: a machine with a service manager would start containerd at once, so there the
package is asked for instead of installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from compaction.local.errors import NodeError
from compaction.local.node import cgroups

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
    if lacking := cgroups.missing():
        raise NodeError(
            f"a node needs the control group controllers {', '.join(lacking)} below {cgroups.ROOT}, and neither "
            "version 1 nor version 2 has them there: mount one of the two, and take care that no cgroup_disable= on "
            "the kernel's command line names them"
        )
    missing = [program for program in ESSENTIAL if shutil.which(program) is None]
    if missing:
        raise NodeError(f"a node needs {', '.join(missing)}: install the packages util-linux, mount and procps")


def missing_packages(programs: Mapping[str, str] = PACKAGES) -> list[str]:
    """The packages of programs that are not here."""
    return sorted({package for program, package in programs.items() if shutil.which(program) is None})


def ensure_packages(programs: Mapping[str, str] = PACKAGES, *, report: Report) -> None:
    """Install with apt what is missing of the programs (program -> package).

    Raises:
        NodeError: there is no apt, a service manager would start what is installed, or the installation failed.
    """
    missing = missing_packages(programs)
    if not missing:
        return
    words = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise NodeError(f"a node needs the programs of Debian's packages {words}, and there is no apt-get here")
    if SERVICE_MANAGER.exists():
        raise NodeError(f"a node needs packages that are not here: apt-get install --no-install-recommends {words}")
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
