"""A file system of a few megabytes that can be filled and made read-only: the errors are the kernel's own.

A tmpfs inside a mount namespace of its own, so that nothing of it is seen outside, and it goes with the last process in
it. Root needs no more; any other account gets the right to mount inside a user namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from compaction.local.processes.process import GUARD
from support.time.waiting import eventually

BLOCK = 1 << 16


@dataclass
class SmallDisk:
    """`inside`: the directory as processes started through `enter` see it; `outside`: as this process does."""

    inside: Path
    mebibytes: int

    def __enter__(self) -> SmallDisk:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        guard = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid())]
        self._user = bool(user)
        self._holder = subprocess.Popen(
            [*guard, "/usr/bin/unshare", *user, "--mount", "--propagation=private", "sleep", "infinity"]
        )
        mine = os.readlink("/proc/self/ns/mnt")
        eventually(lambda: self._namespace() not in {mine, ""}, "a mount namespace", pause=0.02)
        self._mount("-t", "tmpfs", "-o", f"size={self.mebibytes}m", "none", str(self.inside))
        return self

    def __exit__(self, *error: object) -> None:
        self._holder.kill()
        self._holder.wait()

    def _namespace(self) -> str:
        assert self._holder.poll() is None, "this machine allows no mount namespace: run as root, or allow user ones"
        return os.readlink(f"/proc/{self._holder.pid}/ns/mnt")

    @property
    def enter(self) -> tuple[str, ...]:
        user = ("--user", "--preserve-credentials") if self._user else ()
        return ("/usr/bin/nsenter", f"--target={self._holder.pid}", *user, "--mount", "--")

    @property
    def outside(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{self.inside}")

    def set_read_only(self, read_only: bool) -> None:
        """EROFS for every change from now on, or no longer. The kernel refuses while a file is open for writing."""
        option = "ro" if read_only else "rw"
        command = [*self.enter, "mount", "-o", f"remount,{option}", str(self.inside)]
        eventually(
            lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
            f"the disk to be {option}",
        )

    def fill(self, *, leave: int) -> Path:
        """A file that takes all space but `leave` bytes; delete it to get the space back."""
        ballast = self.outside / "ballast"
        free = os.statvfs(self.outside).f_bavail * os.statvfs(self.outside).f_bsize
        with ballast.open("wb") as file:
            for _ in range((free - leave) // BLOCK):
                file.write(bytes(BLOCK))
        return ballast

    def _mount(self, *arguments: str) -> None:
        subprocess.run([*self.enter, "mount", *arguments], check=True, capture_output=True)
