"""Up, down and status of the control plane in a state directory; what the commands, the demo and the tests share.

One control plane per directory: starting and stopping happen under `run.lock`, so two commands at once agree on one
server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compaction.local.cluster.control_plane import RunningControlPlane, start_control_plane
from compaction.local.cluster.state import LocalState, read_state, remove_state
from compaction.local.errors import ControlPlaneBusyError
from compaction.local.processes.locks import exclusive
from compaction.local.programs.binaries import ensure_binaries

Report = Callable[[str], None]


def up(directory: Path, *, detached: bool, audit: bool = False, report: Report = lambda _: None) -> RunningControlPlane:
    """Make the programs ready and start a control plane in `directory`.

    Raises:
        ControlPlaneBusyError: one already runs there.
        BinaryError, ControlPlaneError: it could not be started; nothing is left running.
    """
    binaries = ensure_binaries(report=report)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with exclusive(directory / "run.lock", what=f"starting the control plane in {directory}", report=report):
        state = read_state(directory)
        if state is not None and state.running:
            raise ControlPlaneBusyError(f"a control plane already runs in {directory}: KUBECONFIG={state.kubeconfig}")
        if state is not None:
            _stop(state)
        return start_control_plane(directory, binaries, detached=detached, audit=audit, report=report)


def down(directory: Path, *, report: Report = lambda _: None) -> LocalState | None:
    """Stop what is recorded in `directory`, exactly those processes; None when nothing was recorded. The data stays."""
    if not directory.is_dir():
        return None
    with exclusive(directory / "run.lock", what=f"stopping the control plane in {directory}", report=report):
        state = read_state(directory)
        if state is not None:
            _stop(state)
            remove_state(directory)
        return state


def status(directory: Path) -> LocalState | None:
    """What is recorded in `directory`; its `running` says whether all of it still runs."""
    return read_state(directory)


def _stop(state: LocalState) -> None:
    for process in reversed(state.processes):
        process.stop()
