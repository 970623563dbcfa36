"""Errors of the local control plane, of programs that are built for it, and of demonstrations."""

from __future__ import annotations

from compaction.errors import CompactionError


class LocalStateError(CompactionError):
    """The state file of a local control plane cannot be understood."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}: remove the file after checking that no etcd or kube-apiserver of it runs"


class ControlPlaneError(CompactionError):
    """etcd or kube-apiserver could not be started, or ended."""

    def __init__(self, server: str, reason: str, log: str = "") -> None:
        super().__init__(server, reason, log)
        self.server = server
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"{self.server} {self.reason}" + (f"; the end of its log:\n{self.log}" if self.log else "")


class ControlPlaneBusyError(CompactionError):
    """A control plane already runs in the state directory, or none runs where one is needed."""


class BinaryError(CompactionError):
    """The programs of the control plane were not found and could not be downloaded or built; says what was tried."""


class NodeError(CompactionError):
    """A node could not be started, or left something behind; names it and says what to do."""


class CommandMissingError(CompactionError):
    """This installation does not hold a command, and says where it is available. Argument: the command as written."""

    def __str__(self) -> str:
        return (
            f"`{self.args[0]}` is not available in this image: it runs on workstations only; install the package there "
            "(docs/images.md)"
        )


class ImageError(CompactionError):
    """An image could not be built; names the step, and says what is missing or what was printed."""


class DemoError(CompactionError):
    """The demo could not be carried through; says at which step and what was seen."""


class DrillError(CompactionError):
    """A drill could not be carried through; says at which step. Nothing is said about what it was to prove."""


class ShippedFilesError(CompactionError):
    """A generated file of a checkout cannot be generated; says which and why."""


class RootUnreadableError(CompactionError):
    """A policy's root cannot be scanned; says why and what to do."""
