"""Become another program under another account: `python other_account.py PARENT_PID USER_ID COMMAND [ARG...]`.

As `guard.py`, but for servers that refuse to run as root and need a signal to end: the kernel sends SIGQUIT
when the parent dies (PARENT_PID 0: it may outlive us). Run as a script, with the standard library only. Who is not root
stays who he is.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, user, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    if parent and sys.platform == "linux":
        # After the change of account, which would clear it.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:
            sys.exit(1)
    os.umask(0o077)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
