"""The state file of a local control plane: what runs, so that another command can find, inspect and stop it.

Layout of a state directory (0700): `state.json`, `kubeconfig`, `certificates/`, `etcd/` (the data), `log/`,
`run.lock`. The file is written before the first process starts to serve and replaced atomically; it is removed when
everything it names is gone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from compaction.local.cluster.certs import write_private
from compaction.local.errors import LocalStateError
from compaction.local.processes.process import ProcessId

VERSION = 1
LARGEST_PID = 2**31 - 1


def default_state_dir() -> Path:
    """`${XDG_STATE_HOME:-~/.local/state}/compaction-operator`: where `compactor local` keeps its control plane."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "compaction-operator"


@dataclass(frozen=True, slots=True)
class LocalState:
    """What `compactor local` started: the server's `url`, the file to reach it, the processes in the order of their
    start.
    """

    url: str
    kubeconfig: Path
    processes: tuple[ProcessId, ...]

    @property
    def running(self) -> bool:
        return bool(self.processes) and all(process.alive() for process in self.processes)

    @property
    def survivors(self) -> tuple[ProcessId, ...]:
        """The processes that still run, in the order of their start."""
        return tuple(process for process in self.processes if process.alive())


def state_file(directory: Path) -> Path:
    return directory / "state.json"


def write_state(directory: Path, state: LocalState) -> None:
    document = {
        "version": VERSION,
        "url": state.url,
        "kubeconfig": str(state.kubeconfig),
        "processes": [asdict(process) for process in state.processes],
    }
    write_private(state_file(directory), json.dumps(document, indent=2).encode())


def read_state(directory: Path) -> LocalState | None:
    """The recorded state, or None when nothing was recorded.

    Raises:
        LocalStateError: the file is there but is not one of ours.
    """
    path = state_file(directory)
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise LocalStateError(str(path), f"not JSON ({error})") from error
    try:
        if document["version"] != VERSION:
            raise LocalStateError(str(path), f"its version is unknown, expected {VERSION}")
        processes = tuple(
            ProcessId(name=str(item["name"]), pid=int(item["pid"]), started=str(item["started"]))
            for item in document["processes"]
        )
        if not all(1 < process.pid <= LARGEST_PID for process in processes):
            raise LocalStateError(str(path), "a process number is out of range")
        return LocalState(url=str(document["url"]), kubeconfig=Path(document["kubeconfig"]), processes=processes)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LocalStateError(str(path), f"a field is missing or malformed ({type(error).__name__})") from error


def remove_state(directory: Path) -> None:
    state_file(directory).unlink(missing_ok=True)
