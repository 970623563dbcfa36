"""A node that runs: how to reach its API server from outside, how to run something inside, how to end it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from compaction.local.cluster.certs import Authority
from compaction.local.cluster.control_plane import RunningControlPlane
from compaction.local.cluster.state import LocalState, read_state, remove_state
from compaction.local.errors import NodeError
from compaction.local.node import cgroups
from compaction.local.node.layout import NodeLayout
from compaction.local.processes.locks import exclusive
from compaction.local.processes.process import ProcessId

STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunningNode:
    """`plane` is its API server (through the relay on loopback); `first` is process 1 inside, as seen from outside."""

    layout: NodeLayout
    plane: RunningControlPlane
    keeper: ProcessId
    first: int

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs `arguments` inside the node. Inside, the working directory is /."""
        return ["nsenter", "--target", str(self.first), "--mount", "--pid", "--net", "--", *arguments]

    def run(self, *arguments: str) -> str:
        """Run a command inside and return what it printed. Raises NodeError with its last words."""
        answer = subprocess.run(
            self.command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            raise NodeError(f"`{' '.join(arguments)}` failed inside the node: {answer.stderr.strip()}")
        return answer.stdout

    def hold(self, server: str) -> None:
        """Stop one of its servers, and keep it stopped until `release`."""
        (self.layout.hold / server).touch()

    def release(self, server: str) -> None:
        """Let a server that was held run again."""
        (self.layout.hold / server).unlink(missing_ok=True)

    def stop(self) -> None:
        """End everything in it and remove what it made on the host; safe to call twice.

        Raises:
            NodeError: a process or a control group is left; names it.
        """
        with exclusive(self.layout.lock, what=f"stopping the node in {self.layout.directory}", report=lambda _: None):
            state = read_state(self.layout.directory)
            # Somebody else may have stopped it, and started another one here.
            if state is not None and self.keeper in state.processes:
                end(self.layout, self.keeper)

    def __enter__(self) -> RunningNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def end(layout: NodeLayout, keeper: ProcessId) -> None:
    """Stop the keeper (which stops the node), then look whether anything is left; the caller holds the lock.

    Raises:
        NodeError: as `RunningNode.stop`.
    """
    keeper.stop(patience=STOP_SECONDS)
    left = remains(layout)
    if left:
        raise NodeError(f"the node in {layout.directory} left behind: {'; '.join(left)}")
    remove_state(layout.directory)


def remains(layout: NodeLayout) -> list[str]:
    """What of a stopped node is still on the host: control groups (removed, if they can be) and mounts."""
    left = [f"control group {path}" for path in cgroups.remove(layout.cgroup)]
    return left + [f"mount {path}" for path in mounts_below(layout.directory)]


def mounts_below(directory: Path) -> list[str]:
    """Mount points below a directory in the host's own mount namespace."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(directory)]


def adopt(layout: NodeLayout, state: LocalState) -> RunningNode:
    """The node that another process started and recorded in `state`.

    Raises:
        NodeError: it does not run, or not any more.
    """
    if not state.running:
        raise NodeError(f"no node runs in {layout.directory}")
    first, _ = kept(layout)
    return running_node(layout, state.url, keeper=state.processes[0], first=first)


def running_node(layout: NodeLayout, url: str, *, keeper: ProcessId, first: int) -> RunningNode:
    """Put together what is known."""
    authority = Authority(layout.certificates)
    plane = RunningControlPlane(layout.directory, url, layout.kubeconfig, (keeper,), authority)
    return RunningNode(layout, plane, keeper, first)


def kept(layout: NodeLayout) -> tuple[int, int]:
    """(process 1 as seen from outside, port of the relay) as the keeper wrote them."""
    document = json.loads(layout.kept.read_text())
    return int(document["pid"]), int(document["port"])


def log_tails(layout: NodeLayout, names: Sequence[str], *, tail: int) -> str:
    """The ends of some logs, each under its name, for an error message."""
    found = ((name, layout.log / f"{name}.log") for name in names)
    return "\n".join(
        f"--- {name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-tail:])
        for name, path in found
        if path.exists()
    )
