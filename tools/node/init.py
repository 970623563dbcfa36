"""Process 1 of a node: mounts, network, servers; then it reaps orphans and keeps the servers running.

Run as a script inside fresh pid, mount and network namespaces, with the name of a JSON file that says what to do:

    {"mounts": [["bind", source, target], ...], "directory": ..., "hold": ..., "log": ..., "path": ...,
     "api": [host, port], "commands": [[...], ...], "servers": [{"name", "command", "needs_api"}, ...]}

A server that ends is started again after a second, as a service manager does. While a file of its name lies in the
directory `hold`, it is stopped and stays so: that is how an outage is made from outside. When this process dies, the
kernel kills everything in the namespaces. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.1
RESTART_SECONDS = 1.0
TERMINATE_SECONDS = 10.0


class Supervised:
    """One server: running, held, or waiting to be started again."""

    def __init__(self, document: dict[str, Any], *, plan: dict[str, Any]) -> None:
        self.name: str = document["name"]
        self.needs_api: bool = document["needs_api"]
        self._command: list[str] = document["command"]
        self._plan = plan
        self._hold = Path(plan["hold"]) / self.name
        self.pid = 0
        self._not_before = 0.0
        self._kill_after = float("inf")

    def ended(self, status: int) -> None:
        """Its process was reaped."""
        say(f"{self.name} ended with {os.waitstatus_to_exitcode(status)}")
        self.pid, self._kill_after = 0, float("inf")
        self._not_before = time.monotonic() + RESTART_SECONDS

    def look(self, *, api: bool) -> None:
        """Start, stop or kill it, whatever is due. `api`: whether the API server accepts connections."""
        now = time.monotonic()
        if self._hold.exists():
            if self.pid and self._kill_after == float("inf"):
                say(f"{self.name} is held: stopping it")
                os.kill(self.pid, signal.SIGTERM)
                self._kill_after = now + TERMINATE_SECONDS
            elif self.pid and now > self._kill_after:
                os.kill(self.pid, signal.SIGKILL)
        elif not self.pid and now >= self._not_before and (api or not self.needs_api):
            self._not_before = now + RESTART_SECONDS
            try:
                self._start()
            except OSError as error:
                say(f"{self.name} cannot be started: {error}")

    def _start(self) -> None:
        with (Path(self._plan["log"]) / f"{self.name}.log").open("ab") as output:
            child = subprocess.Popen(
                self._command,
                cwd=self._plan["directory"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Reaped below with all the others, not by subprocess.
        child.returncode = 0
        self.pid = child.pid
        say(f"{self.name} started: pid {self.pid}")


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    # Process 1 ignores signals it has no handler for, but what it starts must not inherit an ignored one.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    for kind, source, target in plan["mounts"]:
        mount(kind, source, target)
    for command in plan["commands"]:
        run(command)
    say("namespaces are set up")
    supervise([Supervised(document, plan=plan) for document in plan["servers"]], address=tuple(plan["api"]))


def mount(kind: str, source: str, target: str) -> None:
    """`bind` a directory or file, or mount a file system of type `kind`."""
    if kind == "bind":
        run(["mount", "--bind", source, target])
    else:
        run(["mount", "-t", kind, source, target])


def run(command: list[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        say(f"failed: `{' '.join(command)}` ended with {answer.returncode}: {answer.stderr.strip()}")
        sys.exit(1)


def supervise(servers: list[Supervised], *, address: tuple[str, int]) -> None:
    """Never returns."""
    answered = False
    while True:
        reap(servers)
        # Once is enough: after that every server gets along with an outage by itself.
        answered = answered or accepts(address)
        for server in servers:
            server.look(api=answered)
        time.sleep(POLL_SECONDS)


def reap(servers: list[Supervised]) -> None:
    """Collect every child that has ended; most are orphans of pods."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for server in servers:
            if server.pid == pid:
                server.ended(status)


def accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    main()
