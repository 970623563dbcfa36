"""Become another program that the kernel kills when our parent dies: `python guard.py PARENT_PID COMMAND [ARG...]`.

Run as a script by `process.spawn`, with the standard library only. PR_SET_PDEATHSIG survives execve; it is a Linux
feature, and elsewhere the program is simply run. If the parent died before the request, no process is left to
live for: exit at once.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
