"""The doors to the code of a kind: dotted names, resolved when they are used.

The operator's image has no pyspark and the worker's no kopf, and a command starts without what it does not need: so
no module imports a kind's packages, and the code behind a door is loaded by its caller.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Door:
    """`name`: `package.module:attribute`, or `package.module` for the module itself."""

    name: str

    def open(self) -> Any:
        """Import what is behind the door. The caller knows its Protocol (tests/house/test_seam.py checks that it is
        one).

        Raises:
            ImportError, AttributeError: there is no such thing: a defect of the kind.
        """
        module, _, attribute = self.name.partition(":")
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found


@dataclass(frozen=True, slots=True)
class CommandDoor:
    """A group of commands of the command line: its name, the line that `--help` shows, and where it is."""

    name: str
    help: str
    door: Door


@dataclass(frozen=True, slots=True)
class Doors:
    """The doors of one kind.

    adapter: `storage.adapter.OpenAdapter`.
    rewriters: `worker.ports.OpenRewriter` by the name of the type of job.
    tables: `cli.local.run_view.RunTables`, what `compactor run` shows.
    open_jobs: `cli.local.run_view.OpenOthers`; None for a kind whose claims say themselves who has them.
    commands: of the command line.
    drill: a click command of `compactor drill`, if the kind has one.
    preloaded: modules that every Spark task of the kind needs, and that load fast enough to be loaded before the first
        job of a worker, whatever its kind.
    """

    adapter: Door
    rewriters: dict[str, Door]
    tables: Door
    open_jobs: Door | None = None
    commands: tuple[CommandDoor, ...] = ()
    drill: CommandDoor | None = None
    preloaded: tuple[Door, ...] = ()
